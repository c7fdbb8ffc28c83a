#pragma once

// Tensor cores, as cuda-many-rows-kernel.cuh uses them: 16 matrix rows of a warp times tiles of 8 columns, of 16 halves.
// From Turing on; on Hopper four warps at a time, which find the columns in shared memory themselves.

#include "cuda-many-rows-memory.cuh"
#include "cuda-tensor-cores.cuh"

#include <cuda_fp16.h>

static __device__ __forceinline__ unsigned many_rows_bits(__half2 pair) {
    return *(const unsigned *) &pair;
}

// Counts one more that has left its sums; returns how many did before. What they left can be read by the last one, which
// sets the counter back.
static __device__ __forceinline__ int many_rows_count(unsigned * counter, int n_others) {
    int n;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(n) : "l"(counter) : "memory");
    if (n == n_others) {
        *counter = 0;
    }
    return n;
}

// How many have left their sums. If all others have, these can be read, and the counter is set back.
static __device__ __forceinline__ int many_rows_counted(unsigned * counter, int n_others) {
    int n;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(counter) : "memory");
    if (n == n_others) {
        *counter = 0;
    }
    return n;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#    define MANY_ROWS_HOPPER

// what follows sees what was copied to shared memory
static __device__ __forceinline__ void many_rows_fence_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void many_rows_begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// all but the last N groups of products
template <int N> static __device__ __forceinline__ void many_rows_wait_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#    define SUMS(i) "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])
#    define WEIGHTS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

// columns: NT tiles, after `distance` bytes those of the second half of the values
template <int NT>
static __device__ __forceinline__ void many_rows_multiply_16(const unsigned (&a)[4], const char * columns, int distance,
                                                             float (&sums)[NT][4]) {
    const uint64_t at     = (unsigned) __cvta_generic_to_shared(columns);
    const uint64_t matrix = at >> 4 | (uint64_t) (distance >> 4) << 16 | (uint64_t) (MANY_ROWS_TILE_SIZE >> 4) << 32;
    if constexpr (NT == 2) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
            "{%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
            : SUMS(0), SUMS(1)
            : WEIGHTS, "l"(matrix));
    } else if constexpr (NT == 4) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
            "%10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
            : SUMS(0), SUMS(1), SUMS(2), SUMS(3)
            : WEIGHTS, "l"(matrix));
    } else if constexpr (NT == MANY_ROWS_HOPPER_TILES) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
            "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, "
            "%29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
            "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
            : SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7), SUMS(8), SUMS(9), SUMS(10),
              SUMS(11), SUMS(12), SUMS(13), SUMS(14), SUMS(15)
            : WEIGHTS, "l"(matrix));
    } else {
        static_assert(NT == MANY_ROWS_TILES);
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
            "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, "
            "%29, %30, %31}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
            : SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7)
            : WEIGHTS, "l"(matrix));
    }
}

#    undef SUMS
#    undef WEIGHTS

#else

static __device__ __forceinline__ void many_rows_fence_copies() {}

static __device__ __forceinline__ void many_rows_begin_products() {}

template <int N> static __device__ __forceinline__ void many_rows_wait_products() {}

static __device__ __forceinline__ void many_rows_multiply_16(const unsigned (&a)[4], unsigned b0, unsigned b1,
                                                             float (&sums)[4]) {
#    if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#    else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#    endif
}

#endif
