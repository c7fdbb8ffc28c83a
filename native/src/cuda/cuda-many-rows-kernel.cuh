#pragma once

// A product of a quantized matrix with many rows of activations, on tensor cores.
//
// A warp takes 16 matrix rows, 8 with a gate and as many of that, and NT tiles of 8 columns. Weights arrive in shared
// memory as they are; a lane unpacks, of two rows, a quarter of 256 values right into the registers that tensor cores
// take, as halves. Thread blocks share the steps of all tiles evenly; where the steps of a tile are of several blocks,
// the last one that has its sums adds all, in the order of the steps.
//
// With experts, a tile's columns are those that have the same one.
//
// Sums are floats. Without experts, for up to 64 columns and where shared memory is enough for 8 tiles, the order in
// which they are added depends on the matrices and the device alone: a column's results do not depend, bit for bit, on
// the columns next to it, nor on how many they are.
//
// Knows device code alone, as the kernel for few rows: whoever includes it has cuda-many-rows-products.cuh, or the same names.

#include "cuda-many-rows-results.cuh"

// 4 bytes of weights as they are packed -> two pairs of halves, times their scale
template <class T>
static FEW_ROWS_FUNCTION void many_rows_convert(int word, __half2 scale, __half2 min, unsigned & first,
                                                unsigned & second) {
    constexpr int  zero   = T::HAS_MIN ? 0 : 128;
    const unsigned bytes  = T::HAS_MIN ? (unsigned) word : (unsigned) word ^ FEW_ROWS_SIGNS;
    // a byte below 0x64 is a half of 1024 and that byte
    const __half2  offset = __half2half2(__ushort_as_half((unsigned short) (0x6400 + zero)));
    const unsigned low    = __byte_perm(bytes, 0x64646464u, 0x4140);
    const unsigned high   = __byte_perm(bytes, 0x64646464u, 0x4342);
    const __half2  a      = __hsub2(*(const __half2 *) &low, offset);
    const __half2  b      = __hsub2(*(const __half2 *) &high, offset);
    first                 = many_rows_bits(T::HAS_MIN ? __hfma2(a, scale, min) : __hmul2(a, scale));
    second                = many_rows_bits(T::HAS_MIN ? __hfma2(b, scale, min) : __hmul2(b, scale));
}

// With 16 tiles and 16 warps a lane has no registers for the addresses of more than two rows.
template <class T, int NT>
using many_rows_pieces =
    std::conditional_t<NT == MANY_ROWS_HOPPER_TILES && many_rows_most_warps<T, NT>() == MANY_ROWS_WARPS,
                       few_rows_pieces<T, FEW_ROWS_LANES, MANY_ROWS_ROWS, 4>,
                       few_rows_pieces<T, FEW_ROWS_LANES, MANY_ROWS_ROWS>>;

// a warp's rows of a step
template <class T, int NT, bool GATE, bool EXPERTS>
static FEW_ROWS_FUNCTION void many_rows_fetch_weights(const few_rows_product &            p,
                                                      const many_rows_position<EXPERTS> & at, char * slot, int warp,
                                                      int lane) {
    using pieces = many_rows_pieces<T, NT>;
    FEW_ROWS_UNROLL
    for (int i = 0; i < pieces::N_COPIES; ++i) {
        const int    row     = pieces::row(lane, i);
        const int    piece   = pieces::at(lane, i);
        const char * source  = at.template row<GATE>(p, warp, row) + at.step * few_rows_step_size<T>();
        const int    skipped = pieces::skipped(source);
        if (pieces::is_there(lane, i, skipped)) {
            __pipeline_memcpy_async(slot + row * few_rows_place_size<T>() + piece, source + piece - skipped,
                                    FEW_ROWS_COPY);
        }
    }
}

// All warps copy a step's columns, as many halves at a time as there are threads for.
template <int NT, bool EXPERTS>
static FEW_ROWS_FUNCTION void many_rows_fetch_columns(const few_rows_product &            p,
                                                      const many_rows_position<EXPERTS> & at, char * slot) {
    constexpr int n_pieces  = NT * MANY_ROWS_TILE_SIZE / FEW_ROWS_COPY; // of a half
    const int     n_threads = p.n_warps * FEW_ROWS_LANES;
    const int     first     = threadIdx.x / n_pieces;
    const int64_t tiles     = EXPERTS ? at.y * p.group_stride : at.y * NT * MANY_ROWS_TILE_SIZE; // where they begin
    const char *  from      = p.columns + MANY_ROWS_HEADER + tiles +
                              ((int64_t) at.step * MANY_ROWS_HALVES + first) * p.column_stride +
                              threadIdx.x % n_pieces * FEW_ROWS_COPY;
    slot += threadIdx.x * FEW_ROWS_COPY;
    for (int half = 0; half < MANY_ROWS_HALVES; half += n_threads / n_pieces) {
        __pipeline_memcpy_async(slot, from, FEW_ROWS_COPY);
        from += n_threads / n_pieces * p.column_stride;
        slot += n_threads * FEW_ROWS_COPY;
    }
}

// Adds a step's products to the sums: of 16 matrix rows and NT tiles.
// rows: the lane's two rows, of which the lane's quarter may not be there; columns: of the step; fetch(): begins to fetch a
// later step
template <class T, int NT, class F>
static FEW_ROWS_FUNCTION void many_rows_multiply(const char * const (&rows)[2], bool is_there, const char * columns,
                                                 int lane, float (&sums)[NT][4], F fetch) {
    constexpr bool is_early = NT < MANY_ROWS_TILES; // with more tiles, fetching overlaps with the products
    if (is_early) {
        fetch();
    }
    constexpr int n_lanes    = T::N_VALUES / FEW_ROWS_PART; // that have a block of weights together
    constexpr int distance   = NT * MANY_ROWS_TILE_SIZE;
    const int     part       = lane % 4 % n_lanes;
    const int     skipped    = lane % 4 / n_lanes * T::SIZE;
    const T       weights[2] = { { rows[0] + skipped, part }, { rows[1] + skipped, part } };
    FEW_ROWS_UNROLL
    for (int b = 0; b < 2; ++b) {
        int     words[2][FEW_ROWS_WORDS];
        __half2 scales[2][2];
        __half2 mins[2];
        FEW_ROWS_UNROLL
        for (int r = 0; r < 2; ++r) {
            weights[r].unpack(b, words[r]);
            if constexpr (T::GROUP == 32) {
                scales[r][0] = __half2half2(__float2half(MANY_ROWS_FACTOR * weights[r].factor(b)));
                scales[r][1] = scales[r][0];
            } else {
                FEW_ROWS_UNROLL
                for (int i = 0; i < 2; ++i) {
                    scales[r][i] =
                        __half2half2(__float2half(MANY_ROWS_FACTOR * weights[r].factor() * weights[r].scale(b, i)));
                }
            }
            if (few_rows_in_parts<T> && !is_there) {
                scales[r][0] = scales[r][1] = __half2half2(__float2half(0.0f));
            }
            if constexpr (T::HAS_MIN) {
                mins[r] = __half2half2(__float2half(-MANY_ROWS_FACTOR * weights[r].min(b)));
            }
        }
        FEW_ROWS_UNROLL
        for (int g = 0; g < 2; ++g) { // 16 values of each quarter
            unsigned values[4][4];
            FEW_ROWS_UNROLL
            for (int i = 0; i < 4; ++i) {
                FEW_ROWS_UNROLL
                for (int r = 0; r < 2; ++r) {
                    many_rows_convert<T>(words[r][4 * g + i], scales[r][g], mins[r], values[i][r], values[i][2 + r]);
                }
            }
            const char * from = columns + (b * 8 + g * 4) * 2 * distance;
#ifdef MANY_ROWS_HOPPER
            many_rows_begin_products();
            FEW_ROWS_UNROLL
            for (int i = 0; i < 4; ++i) {
                many_rows_multiply_16<NT>(values[i], from + 2 * i * distance, distance, sums);
            }
            many_rows_wait_products<1>();
#else
            FEW_ROWS_UNROLL
            for (int i = 0; i < 4; i += 2) {
                const char * row = from + (i * 2 + lane / 8) * distance + lane % 8 * 16;
                FEW_ROWS_UNROLL
                for (int tile = 0; tile < NT; ++tile) {
                    int two[4];
                    more_rows_load_matrices(two, row + tile * MANY_ROWS_TILE_SIZE);
                    many_rows_multiply_16(values[i], two[0], two[1], sums[tile]);
                    many_rows_multiply_16(values[i + 1], two[2], two[3], sums[tile]);
                }
            }
#endif
            if (!is_early && b == 0 && g == 0) {
                fetch();
            }
        }
    }
    many_rows_wait_products<0>();
}

template <class T, int NT, bool GATE, bool EXPERTS>
FEW_ROWS_LAUNCH_BOUNDS((many_rows_most_warps<T, NT>() * FEW_ROWS_LANES), 1)
static FEW_ROWS_KERNEL void many_rows_kernel(const few_rows_product p) {
    FEW_ROWS_SHARED(shared);
    ggml_cuda_pdl_lc();

    const int warp = threadIdx.x / FEW_ROWS_LANES;
    const int lane = threadIdx.x % FEW_ROWS_LANES;
    if (EXPERTS) { // which are still being computed, unlike weights
        ggml_cuda_pdl_sync();
    }
    const int              n_steps = few_rows_steps(p);
    const int              n_y     = EXPERTS ? *p.n_groups_used : many_rows_n_y<NT>(p);
    const int              total   = p.n_blocks * n_y * n_steps;
    const many_rows_shares shares(total);
    const int              begin = shares.begin(blockIdx.x);
    const int              end   = shares.begin(blockIdx.x + 1);

    constexpr int place_size   = few_rows_place_size<T>();
    constexpr int columns_size = many_rows_columns_size<NT>();
    const int     slot_size    = many_rows_slot_size<T, NT>(p.n_warps);

    many_rows_position<EXPERTS> next(p, begin, n_steps, n_y);
    const auto                  weights_of = [&](int slot) {
        return shared + slot * slot_size + columns_size + warp * MANY_ROWS_ROWS * place_size;
    };
    {
        many_rows_position<EXPERTS> ahead = next;
        for (int i = 0; i < min(p.n_slots - 1, end - begin); ++i) { // weights do not depend on what is being computed
            many_rows_fetch_weights<T, NT, GATE, EXPERTS>(p, ahead, weights_of(i), warp, lane);
            ahead.advance(p, n_steps, n_y);
        }
    }
    ggml_cuda_pdl_sync();
    many_rows_position<EXPERTS> now = next;
    for (int i = 0; i < p.n_slots - 1; ++i) {
        if (begin + i < end) {
            many_rows_fetch_columns<NT, EXPERTS>(p, next, shared + i * slot_size);
            next.advance(p, n_steps, n_y);
        }
        __pipeline_commit();
    }

    float sums[NT][4] = {};
    int   slot        = 0;
    int   free_slot   = p.n_slots - 1;
    for (int at = begin; at < end; ++at) {
        // a constant, as CUDA wants it
        p.n_slots == 4 ? __pipeline_wait_prior(2) :
        p.n_slots == 3 ? __pipeline_wait_prior(1) :
                         __pipeline_wait_prior(0);
        many_rows_fence_copies();
        __syncthreads(); // none needs the free slot any more
        const auto fetch = [&] {
            if (at + p.n_slots - 1 < end) {
                many_rows_fetch_columns<NT, EXPERTS>(p, next, shared + free_slot * slot_size);
                many_rows_fetch_weights<T, NT, GATE, EXPERTS>(p, next, weights_of(free_slot), warp, lane);
                next.advance(p, n_steps, n_y);
            }
            __pipeline_commit();
        };

        const char * rows[2];
        FEW_ROWS_UNROLL
        for (int r = 0; r < 2; ++r) {
            const int row = r * 8 + lane / 4;
            rows[r]       = weights_of(slot) + row * place_size;
            rows[r] += many_rows_pieces<T, NT>::skipped(now.template row<GATE>(p, warp, row) +
                                                        now.step * few_rows_step_size<T>());
        }
        const bool is_there = !few_rows_in_parts<T> || now.step * FEW_ROWS_QUARTERS + lane % 4 < p.n_parts;
        many_rows_multiply<T, NT>(rows, is_there, shared + slot * slot_size, lane, sums, fetch);
        slot      = slot + 1 < p.n_slots ? slot + 1 : 0;
        free_slot = free_slot + 1 < p.n_slots ? free_slot + 1 : 0;

        if (now.step + 1 == n_steps || at + 1 == end) {
            const bool is_whole = now.step + 1 == n_steps && at + 1 - n_steps >= begin;
            if (is_whole || many_rows_add_blocks<NT>(p, shares, now.x * n_y + now.y, n_steps, warp, lane, sums)) {
                many_rows_store<NT, GATE, EXPERTS>(p, now, warp, lane, sums);
            }
            FEW_ROWS_UNROLL
            for (int tile = 0; tile < NT; ++tile) {
                sums[tile][0] = sums[tile][1] = sums[tile][2] = sums[tile][3] = 0.0f;
            }
        }
        now.advance(p, n_steps, n_y);
    }
}
