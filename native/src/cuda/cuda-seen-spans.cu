#include "cuda-seen-spans.cuh"

static constexpr int N_THREADS   = 1024;
static constexpr int N_TILES_MAX = 512;

// A single sequence gets a schedule in a graph of the fewest cells alone (MTP_CELLS_STEP in mtp-reservation.h), of which it
// may use few. Where it uses all, a round with three drafts takes 1 to 3 % longer with one (8,192 and 32,768 cells, 10.7
// billion parameters in Q4_K_M, an H200).
static constexpr int64_t CELLS_OF_ONE = 1024;

// Two values of a mask that are both -infinity.
static constexpr unsigned HIDDEN = 0xfc00fc00;

// Looks for the spans that a tile sees, one a warp, and sets their bits: n_words for each tile.
static __global__ void find_seen(const half * mask, int64_t stride, int n_rows, int n_tile_rows, int n_cells,
                                 int n_spans, unsigned * seen) {
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();
    __shared__ unsigned word;
    if (threadIdx.x == 0) {
        word = 0;
    }
    __syncthreads();

    const int warp     = threadIdx.x / WARP_SIZE;
    const int lane     = threadIdx.x % WARP_SIZE;
    const int span     = blockIdx.x * WARP_SIZE + warp;
    const int n_lanes  = n_cells / 8; // for a row
    const int last_row = min((int) (blockIdx.y + 1) * n_tile_rows, n_rows);
    if (span < n_spans) {
        bool is_seen = false;
        for (int row = blockIdx.y * n_tile_rows + lane / n_lanes; row < last_row; row += WARP_SIZE / n_lanes) {
            const uint4 x = *(const uint4 *) (mask + row * stride + span * n_cells + lane % n_lanes * 8);
            is_seen |= x.x != HIDDEN || x.y != HIDDEN || x.z != HIDDEN || x.w != HIDDEN;
        }
        if (__any_sync(0xffffffff, is_seen) && lane == 0) {
            atomicOr(&word, 1u << warp);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        seen[blockIdx.y * gridDim.x + blockIdx.x] = word;
    }
}

// of a warp's lanes, up to the own
static __device__ __forceinline__ int sum_up_to(int n) {
    for (int distance = 1; distance < WARP_SIZE; distance *= 2) {
        const int before = __shfl_up_sync(0xffffffff, n, distance);
        n += (int) threadIdx.x % WARP_SIZE >= distance ? before : 0;
    }
    return n;
}

static __host__ __device__ __forceinline__ int n_parts(int n, int length) {
    return (n + length - 1) / length;
}

// One thread block: lists the spans that tiles see, and divides them into parts of at most one length, the shortest with
// which there are no more parts than entries.
static __global__ void schedule_parts(const unsigned * seen, int n_words, int n_tiles, int n_spans, int n_entries,
                                      int * schedule) {
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();
    __shared__ int n_seen[N_TILES_MAX];
    __shared__ int begins[N_TILES_MAX + 1]; // the first part of each tile

    const int warp  = threadIdx.x / WARP_SIZE;
    const int lane  = threadIdx.x % WARP_SIZE;
    int4 *    parts = (int4 *) schedule;
    int4 *    tiles = parts + n_entries;
    int *     lists = (int *) (tiles + n_tiles);

    for (int tile = warp; tile < n_tiles; tile += N_THREADS / WARP_SIZE) {
        int * list = lists + tile * n_spans;
        int   n    = 0;
        for (int first = 0; first < n_words; first += WARP_SIZE) {
            unsigned  word = first + lane < n_words ? seen[tile * n_words + first + lane] : 0;
            const int end  = sum_up_to(__popc(word));
            int       at   = n + end - __popc(word);
            for (; word; word &= word - 1) {
                list[at++] = (first + lane) * WARP_SIZE + __ffs(word) - 1;
            }
            n += __shfl_sync(0xffffffff, end, WARP_SIZE - 1);
        }
        if (lane == 0) {
            if (n == 0) {
                list[0] = 0; // rows that see nothing are written, too
            }
            n_seen[tile] = max(n, 1);
        }
    }
    __syncthreads();

    if (warp == 0) {
        int shortest = 1;
        int longest  = n_spans;
        while (shortest < longest) {
            const int length = (shortest + longest) / 2;
            int       n      = 0;
            for (int tile = lane; tile < n_tiles; tile += WARP_SIZE) {
                n += n_parts(n_seen[tile], length);
            }
            if (warp_reduce_sum(n) <= n_entries) {
                longest = length;
            } else {
                shortest = length + 1;
            }
        }
        int n_used = 0;
        for (int first = 0; first < n_tiles; first += WARP_SIZE) {
            const int tile = first + lane;
            const int n    = tile < n_tiles ? n_parts(n_seen[tile], longest) : 0;
            const int end  = sum_up_to(n);
            if (tile < n_tiles) {
                begins[tile] = n_used + end - n;
                tiles[tile]  = make_int4(begins[tile], n, 0, 0);
            }
            n_used += __shfl_sync(0xffffffff, end, WARP_SIZE - 1);
        }
        if (lane == 0) {
            begins[n_tiles] = n_used;
        }
    }
    __syncthreads();

    for (int tile = warp; tile < n_tiles; tile += N_THREADS / WARP_SIZE) {
        const int * list = lists + tile * n_spans;
        const int   n    = begins[tile + 1] - begins[tile];
        for (int i = lane; i < n; i += WARP_SIZE) {
            const int begin         = i * n_seen[tile] / n;
            const int end           = (i + 1) * n_seen[tile] / n;
            const int first         = list[begin];
            const int flags         = (i == 0 ? MTP_CUDA_PART_FIRST : 0) | (i + 1 == n ? MTP_CUDA_PART_LAST : 0);
            parts[begins[tile] + i] = list[end - 1] - first == end - 1 - begin ?
                                          make_int4(tile, first, first + end - begin, flags) :
                                          make_int4(tile, begin, end, flags | MTP_CUDA_PART_LISTED);
        }
    }
    for (int i = begins[n_tiles] + threadIdx.x; i < n_entries; i += N_THREADS) {
        parts[i] = make_int4(0, 0, 0, 0);
    }
}

// whether a mask is there, and the same for all layers: the rows of a computed one may be others in each
static bool can_schedule(const ggml_tensor * dst) {
    const ggml_tensor * mask = dst->src[3];
    return mask && mask->op == GGML_OP_NONE && mask->ne[0] == dst->src[1]->ne[1] && mask->ne[2] * mask->ne[3] == 1 &&
           mask->nb[1] % 16 == 0 && dst->ne[3] == 1;
}

// Of a single sequence cells are hidden where the cache is not full, that is, where it is small. If it is full, parts of
// its tiles should not be much longer than equal shares of the work.
static bool is_worth(const ggml_tensor * dst, int n_tiles, int n_spans, int n_entries) {
    if (ggml_get_op_params_i32(dst, MTP_PARAM_SEQUENCES) != 1) {
        return true;
    }
    const int longest = n_parts(n_spans, n_entries / n_tiles);
    return dst->src[1]->ne[1] <= CELLS_OF_ONE && longest * n_entries <= 1.2 * n_tiles * n_spans;
}

int64_t mtp_cuda_rows_of_sequence(const ggml_tensor * dst) {
    const int32_t n_seqs = can_schedule(dst) ? ggml_get_op_params_i32(dst, MTP_PARAM_SEQUENCES) : 1;
    return dst->ne[2] / std::max(n_seqs, 1);
}

const int * mtp_cuda_schedule(ggml_backend_cuda_context & ctx, const ggml_tensor * dst, int n_tile_rows, int n_cells,
                              int n_heads, int n_blocks) {
    const ggml_tensor * mask = dst->src[3];
    if (!can_schedule(dst) || mask->ne[0] % n_cells != 0 || ctx.curr_stream_no != 0) {
        return nullptr;
    }
    const int    n_rows    = dst->ne[2];
    const int    n_tiles   = n_parts(n_rows, n_tile_rows);
    const int    n_spans   = mask->ne[0] / n_cells;
    const int    n_words   = n_parts(n_spans, WARP_SIZE);
    const int    n_entries = mtp_cuda_n_entries(n_tiles, n_heads, n_blocks);
    const size_t n_ints    = 4 * (n_entries + n_tiles) + (size_t) n_tiles * (n_spans + n_words);
    // where there is a thread block for each span, hidden ones cost nothing
    if ((int64_t) n_tiles * n_spans * n_heads <= n_blocks || n_tiles > N_TILES_MAX || n_ints > ctx.SCHEDULE_INTS ||
        !is_worth(dst, n_tiles, n_spans, n_entries)) {
        return nullptr;
    }

    auto & known = ctx.schedules;
    if (!known.memory) {
        CUDA_CHECK(cudaMalloc((void **) &known.memory, 2 * ctx.SCHEDULE_INTS * sizeof(int)));
    }
    const std::array<int, 5> shape = { n_rows, n_tile_rows, n_cells, n_heads, n_blocks };
    for (int i = 0; i < 2; ++i) {
        if (known.masks[i] == mask && known.shapes[i] == shape) {
            return known.memory + i * ctx.SCHEDULE_INTS;
        }
    }
    int *  schedule          = known.memory + known.next * ctx.SCHEDULE_INTS;
    auto * seen              = (unsigned *) schedule + n_ints - (size_t) n_tiles * n_words;
    known.masks[known.next]  = mask;
    known.shapes[known.next] = shape;
    known.next               = 1 - known.next;

    const int64_t stride = mask->nb[1] / sizeof(half);
    ggml_cuda_kernel_launch(find_seen, { dim3(n_words, n_tiles), dim3(N_THREADS), 0, ctx.stream() },
                            (const half *) mask->data, stride, n_rows, n_tile_rows, n_cells, n_spans, seen);
    ggml_cuda_kernel_launch(schedule_parts, { dim3(1), dim3(N_THREADS), 0, ctx.stream() }, (const unsigned *) seen,
                            n_words, n_tiles, n_spans, n_entries, schedule);
    CUDA_CHECK(cudaGetLastError());
    return schedule;
}

struct add_parts_shape {
    int n_values; // of a head
    int n_heads;
    int n_group_heads;
    int n_tile_rows;
    int n_tile_heads;
    int n_blocks;
};

static constexpr int N_ADD_THREADS = 128; // each has 4 values of a row

// blockIdx.y: a row
static __global__ void add_parts(float4 * dst, const float2 * parts, const int * schedule, const add_parts_shape of) {
    ggml_cuda_pdl_lc();
    ggml_cuda_pdl_sync();

    const int  row       = blockIdx.y;
    const int  place     = blockIdx.x * N_ADD_THREADS + threadIdx.x;
    const int  n         = of.n_heads * of.n_values / 4;
    const int  n_each    = n_parts(of.n_group_heads, of.n_tile_heads); // tiles of the heads of a group
    const int  n_all     = of.n_heads / of.n_group_heads * n_each;
    const int  n_tiles   = n_parts(gridDim.y, of.n_tile_rows);
    const int  n_entries = mtp_cuda_n_entries(n_tiles, n_all, of.n_blocks);
    const int4 entries   = ((const int4 *) schedule)[n_entries + row / of.n_tile_rows];
    if (entries.y == 1 || place >= n) {
        return;
    }

    const int head      = place * 4 / of.n_values;
    const int member    = head % of.n_group_heads;
    const int heads     = head / of.n_group_heads * n_each + member / of.n_tile_heads;
    const int n_columns = of.n_tile_rows * of.n_tile_heads;
    const int column    = row % of.n_tile_rows * of.n_tile_heads + member % of.n_tile_heads;
    const int last      = (entries.x + entries.y - 1) * n_all + heads;

    const float * values  = (const float *) (parts + 2 * of.n_blocks * n_columns) + place * 4 % of.n_values;
    const float2  of_last = parts[last * n_columns + column];
    float4        value   = dst[(int64_t) row * n + place];
    float         highest = of_last.x;
    float         sum     = of_last.y;
    for (int block = entries.x * n_all + heads; block < last; block += n_all) {
        const float2 part   = parts[(of.n_blocks + block) * n_columns + column];
        const float4 more   = *(const float4 *) (values + (int64_t) (block * n_columns + column) * of.n_values);
        const float  before = highest;
        highest             = fmaxf(highest, part.x);

        const float scale      = expf(before - highest);
        const float scale_part = expf(part.x - highest);
        value                  = { scale * value.x + scale_part * more.x, scale * value.y + scale_part * more.y,
                                   scale * value.z + scale_part * more.z, scale * value.w + scale_part * more.w };
        sum                    = scale * sum + scale_part * part.y;
    }
    dst[(int64_t) row * n + place] = { value.x / sum, value.y / sum, value.z / sum, value.w / sum };
}

void mtp_cuda_add_parts(ggml_backend_cuda_context & ctx, ggml_tensor * dst, const float2 * parts, const int * schedule,
                        int n_tile_rows, int n_tile_heads, int n_blocks) {
    const int             n_heads = dst->ne[1];
    const add_parts_shape shape   = { (int) dst->ne[0], n_heads,      n_heads / (int) dst->src[1]->ne[2],
                                      n_tile_rows,      n_tile_heads, n_blocks };
    const int             n_all   = n_heads / shape.n_group_heads * n_parts(shape.n_group_heads, n_tile_heads);
    const int             n_tiles = n_parts(dst->ne[2], n_tile_rows);
    if (mtp_cuda_n_entries(n_tiles, n_all, n_blocks) == n_tiles) {
        return; // no tile has several
    }
    const dim3 grid(n_parts(dst->ne[0] * n_heads / 4, N_ADD_THREADS), dst->ne[2]);
    ggml_cuda_kernel_launch(add_parts, { grid, dim3(N_ADD_THREADS), 0, ctx.stream() }, (float4 *) dst->data, parts,
                            schedule, shape);
    CUDA_CHECK(cudaGetLastError());
}
