#pragma once

// A product of a quantized matrix with more rows of activations than cuda-few-rows-kernel.cuh takes, on tensor cores.
//
// A team of four warps takes 32 matrix rows, and goes through chunks of 2048 values: of each 256 values a warp takes a
// quarter, unpacks it to bytes in shared memory, a lane for each matrix row, and multiplies it with tiles of 8 columns.
// With a gate these are 16 rows of the matrix and 16 of the gate.
//
// The sums of products of 32 values are integers, and all that follows is rounded and added in the order in which the
// kernel for few rows does it: a row of activations gives the same bits whatever comes with it. What it takes for that:
// the sums of a quarter of 64 values, from 0 on; those of a chunk, one after the other; the quarters, in pairs; and the
// chunks, one after the other.
//
// Knows device code alone, as the kernel for few rows: whoever includes it has cuda-tensor-cores.cuh, or the same names.

#include "cuda-few-rows-kernel.cuh"
#include "cuda-more-rows-memory.cuh"

// A lane's activations of two blocks of 32 values: of one column for tensor cores, and scales of two others.
struct more_rows_columns {
    int   values[2][2];
    float scales[2][2]; // of a block, of a column
    float sums[2][2];   // for minima
};

// A lane's weights of two blocks of 32 values, and scales of the rows whose sums it has.
template <class T> struct more_rows_weights {
    int   values[MORE_ROWS_TILES][2][4];
    float scales[MORE_ROWS_TILES][2][4]; // GROUP 32: of a block; and what is subtracted from it. GROUP 16: of 16 values
    float factors[MORE_ROWS_TILES][2];   // GROUP 16

    // from what more_rows_unpack() has left
    FEW_ROWS_FUNCTION void load(const char * unpacked, int lane) {
        const int    at     = more_rows_place(lane % 16, lane / 16);
        const char * scales_of = unpacked + MORE_ROWS_SCALES + lane / 4 * 16;
        FEW_ROWS_UNROLL
        for (int m = 0; m < MORE_ROWS_TILES; ++m) {
            FEW_ROWS_UNROLL
            for (int b = 0; b < 2; ++b) {
                more_rows_load_matrices(values[m][b], unpacked + 16 * m * FEW_ROWS_PART + (at ^ 32 * b));
            }
            FEW_ROWS_UNROLL
            for (int half = 0; half < 2; ++half) {
                const int row   = 16 * m + 8 * half;
                const auto four = *(const more_rows_4_floats *) (scales_of + 16 * row);
                FEW_ROWS_UNROLL
                for (int i = 0; i < 4; ++i) {
                    scales[m][half][i] = four.of[i];
                }
                if constexpr (T::GROUP == 16) {
                    factors[m][half] = *(const float *) (unpacked + MORE_ROWS_FACTORS + 4 * (row + lane / 4));
                }
            }
        }
    }

    // adds to the sums of 16 matrix rows and a tile of columns
    FEW_ROWS_FUNCTION void multiply(const more_rows_columns & columns, const float (&begin)[2][2], int m,
                                    float (&sums)[4]) const {
        if constexpr (T::GROUP == 32) {
            const more_rows_tile dots[2] = { more_rows_multiply_32(values[m][0], columns.values[0]),
                                             more_rows_multiply_32(values[m][1], columns.values[1]) };
            FEW_ROWS_UNROLL
            for (int i = 0; i < 4; ++i) {
                const int half = i / 2;
                const int n    = i % 2;
                float     sum  = 0.0f;
                FEW_ROWS_UNROLL
                for (int b = 0; b < 2; ++b) {
                    const float dot = __int_as_float(dots[b].of[i]);
                    const float add = __fmaf_rn(dot, columns.scales[b][n], begin[b][n]);
                    sum = b == 0 ? __fmul_rn(scales[m][half][b], add) : __fmaf_rn(scales[m][half][b], add, sum);
                    if constexpr (T::HAS_MIN) {
                        sum = __fmaf_rn(scales[m][half][2 + b], columns.sums[b][n], sum);
                    }
                }
                sums[i] = __fadd_rn(sums[i], sum);
            }
        } else {
            float results[4];
            FEW_ROWS_UNROLL
            for (int b = 0; b < 2; ++b) {
                const int *          a        = values[m][b];
                const more_rows_tile dots[2]  = { more_rows_multiply_16(a[0], a[1], columns.values[b][0]),
                                                  more_rows_multiply_16(a[2], a[3], columns.values[b][1]) };
                FEW_ROWS_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const int   half   = i / 2;
                    const float second = __fadd_rn(__int_as_float(dots[1].of[i]), -MORE_ROWS_BEGIN_FLOAT);
                    const float scale  = scales[m][half][2 * b];
                    // whole numbers below 2^24, all of them
                    float dot = __fmaf_rn(__int_as_float(dots[0].of[i]), scale, -MORE_ROWS_BEGIN_FLOAT * scale);
                    dot       = __fmaf_rn(second, scales[m][half][2 * b + 1], dot);
                    results[i] =
                        b == 0 ? __fmul_rn(columns.scales[b][i % 2], dot) : __fmaf_rn(columns.scales[b][i % 2], dot, results[i]);
                }
            }
            FEW_ROWS_UNROLL
            for (int i = 0; i < 4; ++i) {
                sums[i] = __fadd_rn(sums[i], __fmul_rn(factors[m][i / 2], results[i]));
            }
        }
    }
};

// A lane unpacks a quarter of 256 values of its matrix row, for the whole warp.
template <class T> static FEW_ROWS_FUNCTION void more_rows_unpack(const char * raw, int quarter, char * to, int lane) {
    constexpr int n_lanes = T::N_VALUES / FEW_ROWS_PART;
    const T       weights(raw + quarter / n_lanes * T::SIZE, quarter % n_lanes);

    int values[2][FEW_ROWS_WORDS];
    FEW_ROWS_UNROLL
    for (int b = 0; b < 2; ++b) {
        weights.unpack(b, values[b]);
        FEW_ROWS_UNROLL
        for (int i = 0; T::OFFSET != 0 && i < FEW_ROWS_WORDS; ++i) {
            // bytes have their highest bit free, so that none borrows from the next
            values[b][i] = ((values[b][i] | (int) 0x80808080) - T::OFFSET * 0x01010101) ^ (int) 0x80808080;
        }
    }
    FEW_ROWS_UNROLL
    for (int t = 0; t < 4; ++t) {
        const int * from = values[t / 2] + t % 2 * 4;

        *(few_rows_4_words *) (to + more_rows_place(lane, t)) = { from[0], from[1], from[2], from[3] };
    }
    float scales[4] = {};
    if constexpr (T::GROUP == 32) {
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            scales[b] = weights.factor(b);
            if constexpr (T::HAS_MIN) {
                scales[2 + b] = -weights.min(b);
            }
        }
    } else {
        FEW_ROWS_UNROLL
        for (int i = 0; i < 4; ++i) {
            scales[i] = (float) weights.scale(i / 2, i % 2);
        }
        *(float *) (to + MORE_ROWS_FACTORS + 4 * lane) = weights.factor();
    }
    *(more_rows_4_floats *) (to + MORE_ROWS_SCALES + 16 * lane) = { scales[0], scales[1], scales[2], scales[3] };
}

// A team's way along its matrix rows: 256 values at a time, of one chunk after the other that it has.
template <class T> struct more_rows_stream {
    static constexpr int  ROW_SIZE   = more_rows_row_size<T>();
    static constexpr int  SLOT_SIZE  = more_rows_slot_size<T>();
    static constexpr int  RING_SIZE  = MORE_ROWS_IN_FLIGHT * MORE_ROWS_ROWS * SLOT_SIZE;
    static constexpr int  PER_ROW    = MORE_ROWS_TEAM * FEW_ROWS_LANES / MORE_ROWS_ROWS; // lanes that fetch a row
    static constexpr bool IS_ALIGNED = ROW_SIZE % FEW_ROWS_COPY == 0;

    const char * from;      // 256 values of the row of which this lane fetches a part: the next ones
    const char * row;       // of the row that it unpacks: those that come next
    char *       slots;
    int          fetched;   // where its part of a row goes
    int          arrived;   // where its row comes from
    int          n_left;    // times 256 values, to fetch
    int          n_skipped; // between chunks, in bytes
    int          n_fetched = 0;
    int          n_taken   = 0;

    static FEW_ROWS_FUNCTION int before(const char * address) {
        return IS_ALIGNED ? 0 : (int) ((uintptr_t) address % FEW_ROWS_COPY);
    }

    // of_row: the lane's row of those that the team fetches, and of those that each of its warps unpacks
    FEW_ROWS_FUNCTION more_rows_stream(const char * from, const char * row, char * slots, int n_blocks, int team,
                                       int n_teams) :
        from(from + (int64_t) team * MORE_ROWS_CHUNK * ROW_SIZE),
        row(row + (int64_t) team * MORE_ROWS_CHUNK * ROW_SIZE), slots(slots),
        fetched(threadIdx.x / PER_ROW % MORE_ROWS_ROWS * SLOT_SIZE), arrived(threadIdx.x % FEW_ROWS_LANES * SLOT_SIZE),
        n_left(n_blocks - team * MORE_ROWS_CHUNK), n_skipped((n_teams - 1) * MORE_ROWS_CHUNK) {}

    FEW_ROWS_FUNCTION void fetch_next() {
        if (n_left > 0) {
            const int    skipped = before(from);
            const int    part    = threadIdx.x % PER_ROW * FEW_ROWS_COPY;
            const char * source  = from - skipped + part;
            char *       to      = slots + fetched + part;
            FEW_ROWS_UNROLL
            for (int at = 0; at < SLOT_SIZE; at += PER_ROW * FEW_ROWS_COPY) {
                if ((IS_ALIGNED && at + PER_ROW * FEW_ROWS_COPY <= ROW_SIZE) || at + part < skipped + ROW_SIZE) {
                    __pipeline_memcpy_async(to + at, source + at, FEW_ROWS_COPY);
                }
            }
            fetched += MORE_ROWS_ROWS * SLOT_SIZE;
            fetched -= fetched >= RING_SIZE ? RING_SIZE : 0;
            from += ROW_SIZE;
            --n_left;
            if (++n_fetched % MORE_ROWS_CHUNK == 0) {
                n_left -= n_skipped;
                from += n_skipped * ROW_SIZE;
            }
        }
        __pipeline_commit();
    }

    // the lane's row
    FEW_ROWS_FUNCTION const char * take() {
        const char * res = slots + arrived + before(row);
        arrived += MORE_ROWS_ROWS * SLOT_SIZE;
        arrived -= arrived >= RING_SIZE ? RING_SIZE : 0;
        if (!IS_ALIGNED) {
            row += ROW_SIZE;
            row += ++n_taken % MORE_ROWS_CHUNK == 0 ? n_skipped * ROW_SIZE : 0;
        }
        return res;
    }
};

// A lane's place in the activations of 256 values.
template <class T> struct more_rows_tiles {
    static constexpr int DISTANCE = (T::activations(0, 1) - T::activations(0, 0)) * MORE_ROWS_Y_SIZE; // of its two blocks

    const char * values;
    const char * scales;

    // first: its first block of 32 values
    FEW_ROWS_FUNCTION more_rows_tiles(const char * columns, int first, int lane) :
        values(columns + first * MORE_ROWS_Y_SIZE + lane * 8),
        scales(columns + first * MORE_ROWS_Y_SIZE + MORE_ROWS_Y_SCALES + lane % 4 * 16) {}

    FEW_ROWS_FUNCTION void advance(int64_t distance) {
        values += distance;
        scales += distance;
    }

    FEW_ROWS_FUNCTION void load(int tile, more_rows_columns & columns) const {
        FEW_ROWS_UNROLL
        for (int b = 0; b < 2; ++b) {
            const int              at    = tile * MORE_ROWS_Y_TILE_SIZE + b * DISTANCE;
            const few_rows_2_words value = *(const few_rows_2_words *) (values + at);
            const auto             scale = *(const more_rows_4_floats *) (scales + at);
            columns.values[b][0]         = value.of[0];
            columns.values[b][1]         = value.of[1];
            columns.scales[b][0]         = scale.of[0];
            columns.sums[b][0]           = scale.of[1];
            columns.scales[b][1]         = scale.of[2];
            columns.sums[b][1]           = scale.of[3];
        }
    }
};

// Adds a chunk's sums of a block's teams to the results, of which a warp has some tiles.
template <int NT>
static FEW_ROWS_FUNCTION void more_rows_add_chunks(const float (&sums)[NT][MORE_ROWS_TILES][4], char * const (&unpacked),
                                                   int team_size, int n_teams, int n_chunks_left,
                                                   float (&results)[NT / 2][4], int warp, int lane) {
    const int of_team = warp % MORE_ROWS_TEAM;
    char *    mine    = unpacked + warp / MORE_ROWS_TEAM * team_size;
    FEW_ROWS_UNROLL
    for (int round = 0; round < NT / 2; ++round) {
        FEW_ROWS_UNROLL
        for (int i = 0; i < 4; ++i) { // tiles of a round: i / 2 of columns, i % 2 of rows
            const float(&of)[4] = sums[2 * round + i / 2][i % 2];
            *(more_rows_4_floats *) (mine + of_team * MORE_ROWS_UNPACKED + (i * FEW_ROWS_LANES + lane) * 16) = {
                of[0], of[1], of[2], of[3]
            };
        }
        __syncthreads();
        if (round % n_teams == warp / MORE_ROWS_TEAM) {
            for (int team = 0; team < min(n_teams, n_chunks_left); ++team) {
                const char * from = unpacked + team * team_size + (of_team * FEW_ROWS_LANES + lane) * 16;

                more_rows_4_floats quarters[MORE_ROWS_TEAM];
                FEW_ROWS_UNROLL
                for (int q = 0; q < MORE_ROWS_TEAM; ++q) {
                    quarters[q] = *(const more_rows_4_floats *) (from + q * MORE_ROWS_UNPACKED);
                }
                FEW_ROWS_UNROLL
                for (int i = 0; i < 4; ++i) {
                    results[round][i] += (quarters[0].of[i] + quarters[1].of[i]) + (quarters[2].of[i] + quarters[3].of[i]);
                }
            }
        }
        __syncthreads();
    }
}

// Stores what the product gives: results go through shared memory, so that rows that follow each other are stored together.
template <int NT, bool GATE>
static FEW_ROWS_FUNCTION void more_rows_store(const few_rows_product & p, const few_rows_matrix & matrix, int row_0,
                                              int n_rows, int column_0, const float (&results)[NT / 2][4],
                                              float * all, int n_teams, int warp, int lane) {
    constexpr int stride = MORE_ROWS_ROWS + 1;
    FEW_ROWS_UNROLL
    for (int round = 0; round < NT / 2; ++round) {
        if (round % n_teams == warp / MORE_ROWS_TEAM) {
            const int of_team = warp % MORE_ROWS_TEAM;
            FEW_ROWS_UNROLL
            for (int i = 0; i < 4; ++i) {
                const int column = (2 * round + of_team / 2) * 8 + lane % 4 * 2 + i % 2;
                const int row    = of_team % 2 * 16 + i / 2 * 8 + lane / 4;
                all[column * stride + row] = results[round][i];
            }
        }
    }
    __syncthreads();
    constexpr int rows = GATE ? MORE_ROWS_ROWS / 2 : MORE_ROWS_ROWS;
    for (int at = threadIdx.x; at < rows * min(8 * NT, p.n_tokens - column_0); at += p.n_warps * FEW_ROWS_LANES) {
        const int row    = at % rows;
        const int column = at / rows;
        const int n      = column_0 + column;
        if (row >= n_rows) {
            continue;
        }
        float result = all[column * stride + row];
        if (p.bias) {
            result += p.bias[n * p.bias_stride + row_0 + row];
        }
        if constexpr (GATE) {
            float gate = all[column * stride + rows + row];
            if (p.gate_bias) {
                gate += p.gate_bias[n * p.gate_bias_stride + row_0 + row];
            }
            result = few_rows_glu(result, gate, p.glu_op, p.glu_limit);
        }
        matrix.dst[n * matrix.dst_stride + row_0 + row] = result;
    }
}

// 32 rows of a matrix, or 16 and as many of the gate; blockIdx.y: of NT tiles of columns each
template <class T, int NT, bool GATE>
FEW_ROWS_LAUNCH_BOUNDS(MORE_ROWS_BOUND(NT), 1)
static FEW_ROWS_KERNEL void more_rows_kernel(const few_rows_product p) {
    FEW_ROWS_SHARED(shared);
    ggml_cuda_pdl_lc();

    const int warp    = threadIdx.x / FEW_ROWS_LANES;
    const int lane    = threadIdx.x % FEW_ROWS_LANES;
    const int team    = warp / MORE_ROWS_TEAM;
    const int quarter = warp % MORE_ROWS_TEAM;
    const int in_team = threadIdx.x % (MORE_ROWS_TEAM * FEW_ROWS_LANES);
    const int n_teams = p.n_warps / MORE_ROWS_TEAM;
    const int n_blocks = p.n_parts / FEW_ROWS_QUARTERS; // of 256 values

    const few_rows_matrix & matrix = few_rows_matrix_of_block(p);
    const int               row_0  = (blockIdx.x - matrix.first_block) * p.n_block_rows;
    const int               n_rows = min(p.n_block_rows, matrix.n_rows - row_0);
    const auto              row_at = [&](int i) {
        const bool in_gate = GATE && i >= MORE_ROWS_ROWS / 2;
        const int  row     = row_0 + min(in_gate ? i - MORE_ROWS_ROWS / 2 : i, n_rows - 1);
        return (in_gate ? p.gate : matrix.data) + row * p.row_stride;
    };

    constexpr int team_size = more_rows_team_size<T>();
    char * const  unpacked  = shared + MORE_ROWS_IN_FLIGHT * MORE_ROWS_ROWS * more_rows_slot_size<T>(); // of team 0
    char * const  mine      = unpacked + team * team_size + quarter * MORE_ROWS_UNPACKED;

    more_rows_stream<T> stream(row_at(in_team / more_rows_stream<T>::PER_ROW), row_at(lane), shared + team * team_size,
                               n_blocks, team, n_teams);
    for (int i = 0; i < MORE_ROWS_IN_FLIGHT - 1; ++i) {
        stream.fetch_next(); // weights do not depend on what is still being computed
    }
    ggml_cuda_pdl_sync();

    constexpr int n_lanes = T::N_VALUES / FEW_ROWS_PART; // that would have a block of weights together
    const int     first   = quarter / n_lanes * (T::N_VALUES / 32) + T::activations(quarter % n_lanes, 0);

    more_rows_tiles<T> tiles(p.columns + blockIdx.y * NT * MORE_ROWS_Y_TILE_SIZE, first, lane);
    tiles.advance(min(team * MORE_ROWS_CHUNK, n_blocks - 1) * p.column_stride);

    more_rows_columns ahead[2];
    tiles.load(0, ahead[0]);
    tiles.load(1, ahead[1]);

    float     results[NT / 2][4] = {};
    const int n_chunks           = (n_blocks + MORE_ROWS_CHUNK - 1) / MORE_ROWS_CHUNK;
    for (int chunk = 0; chunk < n_chunks; chunk += n_teams) {
        const int begin = (chunk + team) * MORE_ROWS_CHUNK;
        const int end   = min(begin + MORE_ROWS_CHUNK, n_blocks);

        float sums[NT][MORE_ROWS_TILES][4] = {};
        for (int block = begin; block < end; ++block) {
            __pipeline_wait_prior(MORE_ROWS_IN_FLIGHT - 2);
            more_rows_sync_team(team); // all have the slot that is fetched to now behind them
            stream.fetch_next();
            more_rows_unpack<T>(stream.take(), quarter, mine, lane);
            __syncwarp();
            more_rows_weights<T> weights;
            weights.load(mine, lane);
            __syncwarp();

            const more_rows_tiles<T> now       = tiles;
            const int                following = block + 1 < end ? block + 1 : begin + n_teams * MORE_ROWS_CHUNK;
            if (following < n_blocks) {
                tiles.advance((following - block) * p.column_stride);
            }
            FEW_ROWS_UNROLL
            for (int n = 0; n < NT; ++n) {
                more_rows_columns & columns    = ahead[n % 2];
                const float         less[2][2] = {
                    { -MORE_ROWS_BEGIN_FLOAT * columns.scales[0][0], -MORE_ROWS_BEGIN_FLOAT * columns.scales[0][1] },
                    { -MORE_ROWS_BEGIN_FLOAT * columns.scales[1][0], -MORE_ROWS_BEGIN_FLOAT * columns.scales[1][1] }
                };
                FEW_ROWS_UNROLL
                for (int m = 0; m < MORE_ROWS_TILES; ++m) {
                    weights.multiply(columns, less, m, sums[n][m]);
                }
                n + 2 < NT ? now.load(n + 2, columns) : tiles.load(n + 2 - NT, columns);
            }
        }
        more_rows_add_chunks<NT>(sums, unpacked, team_size, n_teams, n_chunks - chunk, results, warp, lane);
    }
    more_rows_store<NT, GATE>(p, matrix, row_0, n_rows, blockIdx.y * NT * 8, results, (float *) shared, n_teams, warp, lane);
}
