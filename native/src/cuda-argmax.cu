#include "cuda-argmax.cuh"

static constexpr int N_THREADS = 256;
static constexpr int N_PART    = 4096; // values of a thread block
static constexpr int N_MIN     = 4 * N_PART;

// ordered as the values are, the first of equal ones highest; NaN lowest
static __device__ __forceinline__ unsigned long long argmax_key(float value, unsigned place) {
    const unsigned bits    = __float_as_uint(value);
    const bool     is_nan  = (bits & 0x7fffffff) > 0x7f800000;
    const unsigned ordered = is_nan ? 0 : bits >> 31 ? ~bits : bits | 0x80000000;
    return (unsigned long long) ordered << 32 | ~place;
}

// the highest key of all threads, in thread 0
static __device__ __forceinline__ unsigned long long argmax_highest(unsigned long long key) {
    __shared__ unsigned long long keys[N_THREADS / WARP_SIZE];

    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {
        key = max(key, __shfl_xor_sync(0xffffffff, key, distance));
    }
    if (threadIdx.x % WARP_SIZE == 0) {
        keys[threadIdx.x / WARP_SIZE] = key;
    }
    __syncthreads();
    for (int i = 0; i < N_THREADS / WARP_SIZE; ++i) {
        key = max(key, keys[i]);
    }
    return key;
}

static __global__ void argmax_of_parts(const float * values, unsigned long long * keys, int64_t n) {
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();
    const int64_t begin = (int64_t) blockIdx.x * N_PART;

    unsigned long long key = 0;
    for (int64_t i = begin + threadIdx.x; i < min(n, begin + N_PART); i += N_THREADS) {
        key = max(key, argmax_key(values[blockIdx.y * n + i], i));
    }
    key = argmax_highest(key);
    if (threadIdx.x == 0) {
        keys[blockIdx.y * gridDim.x + blockIdx.x] = key;
    }
}

static __global__ void argmax_of_rows(const unsigned long long * keys, int32_t * dst, int n_parts) {
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();
    unsigned long long key = 0;
    for (int i = threadIdx.x; i < n_parts; i += N_THREADS) {
        key = max(key, keys[blockIdx.x * n_parts + i]);
    }
    key = argmax_highest(key);
    if (threadIdx.x == 0) {
        dst[blockIdx.x] = ~(unsigned) key;
    }
}

bool mtp_cuda_argmax(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, ggml_tensor * dst) {
    const int64_t n      = src0->ne[0];
    const int     n_rows = ggml_nrows(src0);
    if (n < N_MIN || !(dst->flags & GGML_TENSOR_FLAG_SINGLE_ROWS)) {
        return false;
    }
    const int n_parts = (n + N_PART - 1) / N_PART;

    ggml_cuda_pool_alloc<unsigned long long> keys(ctx.pool(), n_parts * n_rows);
    ggml_cuda_kernel_launch(argmax_of_parts,
                            ggml_cuda_kernel_launch_params(dim3(n_parts, n_rows), N_THREADS, (size_t) 0, ctx.stream()),
                            (const float *) src0->data, keys.get(), n);
    ggml_cuda_kernel_launch(argmax_of_rows, ggml_cuda_kernel_launch_params(n_rows, N_THREADS, (size_t) 0, ctx.stream()),
                            (const unsigned long long *) keys.get(), (int32_t *) dst->data, n_parts);
    return true;
}
