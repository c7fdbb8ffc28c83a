#pragma once

// A product of a quantized matrix with 9 to 16 rows of activations, on tensor cores.
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
        const int    at        = more_rows_place(lane % 16, lane / 16);
        const char * scales_of = unpacked + MORE_ROWS_SCALES + lane / 4 * 16;
        FEW_ROWS_UNROLL
        for (int m = 0; m < MORE_ROWS_TILES; ++m) {
            FEW_ROWS_UNROLL
            for (int b = 0; b < 2; ++b) {
                more_rows_load_matrices(values[m][b], unpacked + 16 * m * FEW_ROWS_PART + (at ^ 32 * b));
            }
            FEW_ROWS_UNROLL
            for (int half = 0; half < 2; ++half) {
                const int  row  = 16 * m + 8 * half;
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
    FEW_ROWS_FUNCTION void multiply(const more_rows_columns & columns, int m, float (&sums)[4]) const {
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
                    const float add =
                        __fmaf_rn(dot, columns.scales[b][n], -MORE_ROWS_BEGIN_FLOAT * columns.scales[b][n]);
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
                const int *          a       = values[m][b];
                const more_rows_tile dots[2] = { more_rows_multiply_16(a[0], a[1], columns.values[b][0]),
                                                 more_rows_multiply_16(a[2], a[3], columns.values[b][1]) };
                FEW_ROWS_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const int   half   = i / 2;
                    const float second = __fadd_rn(__int_as_float(dots[1].of[i]), -MORE_ROWS_BEGIN_FLOAT);
                    const float scale  = scales[m][half][2 * b];
                    // whole numbers below 2^24, all of them
                    float       dot = __fmaf_rn(__int_as_float(dots[0].of[i]), scale, -MORE_ROWS_BEGIN_FLOAT * scale);
                    dot             = __fmaf_rn(second, scales[m][half][2 * b + 1], dot);
                    results[i]      = b == 0 ? __fmul_rn(columns.scales[b][i % 2], dot) :
                                               __fmaf_rn(columns.scales[b][i % 2], dot, results[i]);
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
            values[b][i] = (int) ((((unsigned) values[b][i] | 0x80808080u) - T::OFFSET * 0x01010101u) ^ 0x80808080u);
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

// A team's way along its matrix rows: 256 values at a time, of one chunk after the other that it has. With them come the
// activations of each warp's quarter.
template <class T> struct more_rows_stream {
    static constexpr int NT        = MORE_ROWS_ALL_TILES;
    static constexpr int ROW_SIZE  = few_rows_step_size<T>();
    static constexpr int SLOT_SIZE = few_rows_place_size<T>();
    static constexpr int IN_FLIGHT = more_rows_in_flight<T>();
    static constexpr int RING_SIZE = IN_FLIGHT * MORE_ROWS_ROWS * SLOT_SIZE;
    static constexpr int Y_SIZE    = NT * MORE_ROWS_Y_SIZE; // of 32 values
    static constexpr int Y_RING    = IN_FLIGHT * 2 * Y_SIZE;
    static constexpr int Y_DISTANCE =
        T::activations(0, 1) - T::activations(0, 0); // between a warp's blocks of 32 values
    static constexpr int  PER_ROW    = MORE_ROWS_TEAM * FEW_ROWS_LANES / MORE_ROWS_ROWS; // lanes that fetch a row
    static constexpr bool IS_ALIGNED = ROW_SIZE % FEW_ROWS_COPY == 0;

    const char * from;    // the row of which this lane fetches a part
    const char * columns; // the activations of its warp
    char *       slots;
    char *       y_slots;
    int          row_begin;     // of the row that it unpacks: the address, of which the last bits count
    int          y_distance;    // from 256 values to the next
    int          n_blocks;      // of 256 values
    int          n_skipped;     // between chunks
    int          next;          // to fetch
    int          y_next;
    int          now;           // to unpack
    int          to_fetch  = 0; // slots
    int          y_fetched = 0;
    int          to_unpack = 0;
    int          y_arrived = 0;

    static FEW_ROWS_FUNCTION int before(int address) { return IS_ALIGNED ? 0 : address % FEW_ROWS_COPY; }

    // from, row: the lane's row of those that the team fetches, and of those that each of its warps unpacks
    FEW_ROWS_FUNCTION more_rows_stream(const few_rows_product & p, const char * from, const char * row, char * slots,
                                       char * y_slots, int team, int n_teams) :
        from(from + threadIdx.x % PER_ROW * FEW_ROWS_COPY), slots(slots), y_slots(y_slots),
        row_begin((int) ((uintptr_t) row % FEW_ROWS_COPY)), y_distance(8 * (int) p.column_stride),
        n_blocks(p.n_parts / FEW_ROWS_QUARTERS), n_skipped((n_teams - 1) * MORE_ROWS_CHUNK),
        next(team * MORE_ROWS_CHUNK), y_next(next), now(next) {
        constexpr int n_lanes = T::N_VALUES / FEW_ROWS_PART; // that would have a block of weights together

        const int quarter = threadIdx.x / FEW_ROWS_LANES % MORE_ROWS_TEAM;
        const int block   = quarter / n_lanes * (T::N_VALUES / 32) + T::activations(quarter % n_lanes, 0);
        columns           = p.columns + block * p.column_stride + threadIdx.x % FEW_ROWS_LANES * FEW_ROWS_COPY;
    }

    FEW_ROWS_FUNCTION void advance(int & block) const {
        ++block;
        block += block % MORE_ROWS_CHUNK == 0 ? n_skipped : 0;
    }

    static FEW_ROWS_FUNCTION void advance_slot(int & slot) { slot = slot + 1 < IN_FLIGHT ? slot + 1 : 0; }

    FEW_ROWS_FUNCTION void fetch_weights() {
        if (next < n_blocks) {
            const char * source  = from + (int64_t) next * ROW_SIZE;
            const int    part    = threadIdx.x % PER_ROW * FEW_ROWS_COPY;
            const int    skipped = before((int) (uintptr_t) source & (FEW_ROWS_COPY - 1));
            char * to = slots + (to_fetch * MORE_ROWS_ROWS + threadIdx.x / PER_ROW % MORE_ROWS_ROWS) * SLOT_SIZE + part;
            source -= skipped;
            FEW_ROWS_UNROLL
            for (int at = 0; at < SLOT_SIZE; at += PER_ROW * FEW_ROWS_COPY) {
                if ((IS_ALIGNED && at + PER_ROW * FEW_ROWS_COPY <= ROW_SIZE) || at + part < skipped + ROW_SIZE) {
                    __pipeline_memcpy_async(to + at, source + at, FEW_ROWS_COPY);
                }
            }
        }
        advance(next);
        advance_slot(to_fetch);
    }

    FEW_ROWS_FUNCTION void fetch_columns() {
        if (y_next < n_blocks) {
            const int lane = threadIdx.x % FEW_ROWS_LANES * FEW_ROWS_COPY;
            FEW_ROWS_UNROLL
            for (int b = 0; b < 2; ++b) {
                const char * source = columns + y_next * y_distance + b * Y_DISTANCE * (y_distance / 8);
                char *       to     = y_slots + (2 * y_fetched + b) * Y_SIZE + lane;
                FEW_ROWS_UNROLL
                for (int at = 0; at < Y_SIZE; at += FEW_ROWS_LANES * FEW_ROWS_COPY) {
                    if (at + FEW_ROWS_LANES * FEW_ROWS_COPY <= Y_SIZE || at + lane < Y_SIZE) {
                        __pipeline_memcpy_async(to + at, source + at, FEW_ROWS_COPY);
                    }
                }
            }
        }
        advance(y_next);
        advance_slot(y_fetched);
    }

    // of the lane's row
    FEW_ROWS_FUNCTION const char * arrived() const {
        return slots + (to_unpack * MORE_ROWS_ROWS + threadIdx.x % FEW_ROWS_LANES) * SLOT_SIZE +
               before(row_begin + now * ROW_SIZE);
    }

    FEW_ROWS_FUNCTION const char * arrived_columns() const { return y_slots + 2 * y_arrived * Y_SIZE; }
};

// A lane's activations of a tile, from shared memory
static FEW_ROWS_FUNCTION void more_rows_load_columns(const char * arrived, int tile, int lane,
                                                     more_rows_columns & columns) {
    FEW_ROWS_UNROLL
    for (int b = 0; b < 2; ++b) {
        const char *           from  = arrived + (b * MORE_ROWS_ALL_TILES + tile) * MORE_ROWS_Y_SIZE;
        const few_rows_2_words value = *(const few_rows_2_words *) (from + lane * 8);
        const auto             scale = *(const more_rows_4_floats *) (from + MORE_ROWS_Y_SCALES + lane % 4 * 16);
        columns.values[b][0]         = value.of[0];
        columns.values[b][1]         = value.of[1];
        columns.scales[b][0]         = scale.of[0];
        columns.sums[b][0]           = scale.of[1];
        columns.scales[b][1]         = scale.of[2];
        columns.sums[b][1]           = scale.of[3];
    }
}

// Adds a chunk's sums of a block's teams to the results, of which a warp has some. mine: where the warp leaves its sums;
// the first warp does so at `first`, others in distances.
static FEW_ROWS_FUNCTION void more_rows_add_chunks(const float (&sums)[MORE_ROWS_ALL_TILES][MORE_ROWS_TILES][4],
                                                   char * first, int warp_distance, int team_distance, int n_teams,
                                                   int n_chunks_left, float (&results)[MORE_ROWS_ALL_TILES / 2][4],
                                                   int warp, int lane) {
    constexpr int NT      = MORE_ROWS_ALL_TILES;
    constexpr int n_tiles = 2 * NT; // of a round, and 16 matrix rows
    const int     team    = warp / MORE_ROWS_TEAM;
    const int     of_team = warp % MORE_ROWS_TEAM;
    char *        mine    = first + team * team_distance + of_team * warp_distance;
    FEW_ROWS_UNROLL
    for (int begin = 0; begin < 2 * NT; begin += n_tiles) {
        FEW_ROWS_UNROLL
        for (int i = 0; i < n_tiles; ++i) {
            const float (&of)[4]                                              = sums[(begin + i) / 2][(begin + i) % 2];
            *(more_rows_4_floats *) (mine + (i * FEW_ROWS_LANES + lane) * 16) = { of[0], of[1], of[2], of[3] };
        }
        __syncthreads();
        FEW_ROWS_UNROLL
        for (int i = 0; i < n_tiles; i += MORE_ROWS_TEAM) {
            const int round = (begin + i) / MORE_ROWS_TEAM;
            if (round % n_teams == team) {
                for (int other = 0; other < min(n_teams, n_chunks_left); ++other) {
                    const char * from = first + other * team_distance + ((i + of_team) * FEW_ROWS_LANES + lane) * 16;

                    more_rows_4_floats quarters[MORE_ROWS_TEAM];
                    FEW_ROWS_UNROLL
                    for (int q = 0; q < MORE_ROWS_TEAM; ++q) {
                        quarters[q] = *(const more_rows_4_floats *) (from + q * warp_distance);
                    }
                    FEW_ROWS_UNROLL
                    for (int k = 0; k < 4; ++k) {
                        results[round][k] +=
                            (quarters[0].of[k] + quarters[1].of[k]) + (quarters[2].of[k] + quarters[3].of[k]);
                    }
                }
            }
        }
        __syncthreads();
    }
}

// Stores what the product gives: results go through shared memory, so that rows that follow each other are stored together.
template <bool GATE>
static FEW_ROWS_FUNCTION void more_rows_store(const few_rows_product & p, const few_rows_matrix & matrix, int row_0,
                                              int     n_rows, const float (&results)[MORE_ROWS_ALL_TILES / 2][4],
                                              float * all, int n_teams, int warp, int lane) {
    constexpr int NT     = MORE_ROWS_ALL_TILES;
    constexpr int stride = MORE_ROWS_ROWS + 1;
    FEW_ROWS_UNROLL
    for (int round = 0; round < NT / 2; ++round) {
        if (round % n_teams == warp / MORE_ROWS_TEAM) {
            const int of_team = warp % MORE_ROWS_TEAM;
            FEW_ROWS_UNROLL
            for (int i = 0; i < 4; ++i) {
                const int column           = (2 * round + of_team / 2) * 8 + lane % 4 * 2 + i % 2;
                const int row              = of_team % 2 * 16 + i / 2 * 8 + lane / 4;
                all[column * stride + row] = results[round][i];
            }
        }
    }
    __syncthreads();
    constexpr int rows = GATE ? MORE_ROWS_ROWS / 2 : MORE_ROWS_ROWS;
    for (int at = threadIdx.x; at < rows * p.n_tokens; at += p.n_warps * FEW_ROWS_LANES) {
        const int row = at % rows;
        const int n   = at / rows;
        if (row >= n_rows) {
            continue;
        }
        float result = all[n * stride + row];
        if (p.bias) {
            result += p.bias[n * p.bias_stride + row_0 + row];
        }
        if constexpr (GATE) {
            float gate = all[n * stride + rows + row];
            if (p.gate_bias) {
                gate += p.gate_bias[n * p.gate_bias_stride + row_0 + row];
            }
            result = few_rows_glu(result, gate, p.glu_op, p.glu_limit);
        }
        matrix.dst[n * matrix.dst_stride + row_0 + row] = result;
    }
}

// 32 rows of a matrix, or 16 and as many of the gate
template <class T, bool GATE>
FEW_ROWS_LAUNCH_BOUNDS(512, 1)
static FEW_ROWS_KERNEL void more_rows_kernel(const few_rows_product p) {
    FEW_ROWS_SHARED(shared);
    ggml_cuda_pdl_lc();

    const int warp     = threadIdx.x / FEW_ROWS_LANES;
    const int lane     = threadIdx.x % FEW_ROWS_LANES;
    const int team     = warp / MORE_ROWS_TEAM;
    const int quarter  = warp % MORE_ROWS_TEAM;
    const int in_team  = threadIdx.x % (MORE_ROWS_TEAM * FEW_ROWS_LANES);
    const int n_teams  = p.n_warps / MORE_ROWS_TEAM;
    const int n_blocks = p.n_parts / FEW_ROWS_QUARTERS; // of 256 values

    const few_rows_matrix & matrix = few_rows_matrix_of_block(p);
    const int               row_0  = (blockIdx.x - matrix.first_block) * p.n_block_rows;
    const int               n_rows = min(p.n_block_rows, matrix.n_rows - row_0);
    const auto              row_at = [&](int i) {
        const bool in_gate = GATE && i >= MORE_ROWS_ROWS / 2;
        const int  row     = row_0 + min(in_gate ? i - MORE_ROWS_ROWS / 2 : i, n_rows - 1);
        return (in_gate ? p.gate : matrix.data) + row * p.row_stride;
    };

    constexpr int NT  = MORE_ROWS_ALL_TILES;
    using stream_type = more_rows_stream<T>;

    constexpr int team_size = more_rows_team_size<T>();
    char * const  slots     = shared + team * team_size;
    char * const  unpacked  = slots + stream_type::RING_SIZE + quarter * 2 * MORE_ROWS_UNPACKED;
    char * const  y_slots =
        slots + stream_type::RING_SIZE + MORE_ROWS_TEAM * 2 * MORE_ROWS_UNPACKED + quarter * stream_type::Y_RING;

    stream_type stream(p, row_at(in_team / stream_type::PER_ROW), row_at(lane), slots, y_slots, team, n_teams);
    stream.fetch_weights(); // which do not depend on what is still being computed
    ggml_cuda_pdl_sync();
    FEW_ROWS_UNROLL
    for (int i = 0; i < stream_type::IN_FLIGHT - 1; ++i) {
        stream.fetch_weights();
        stream.fetch_columns();
        __pipeline_commit();
    }
    const auto unpack = [&](int to) {
        more_rows_unpack<T>(stream.arrived(), quarter, unpacked + to * MORE_ROWS_UNPACKED, lane);
        stream.advance(stream.now);
        stream.advance_slot(stream.to_unpack);
    };
    __pipeline_wait_prior(stream_type::IN_FLIGHT - 2);
    more_rows_sync_team(team);
    unpack(0);

    float     results[NT / 2][4] = {};
    int       current            = 0; // of what is unpacked
    const int n_chunks           = (n_blocks + MORE_ROWS_CHUNK - 1) / MORE_ROWS_CHUNK;
    for (int chunk = 0; chunk < n_chunks; chunk += n_teams) {
        const int n = min(MORE_ROWS_CHUNK, n_blocks - (chunk + team) * MORE_ROWS_CHUNK);

        float sums[NT][MORE_ROWS_TILES][4] = {};
        for (int i = 0; i < n; ++i) {
            __pipeline_wait_prior(stream_type::IN_FLIGHT - 2);
            more_rows_sync_team(team); // all have the slots that are fetched to now behind them
            stream.fetch_weights();
            stream.fetch_columns();
            __pipeline_commit();

            more_rows_weights<T> weights;
            weights.load(unpacked + current * MORE_ROWS_UNPACKED, lane);
            current = 1 - current;

            const char * arrived = stream.arrived_columns();
            stream.advance_slot(stream.y_arrived);

            more_rows_columns columns[2]; // a tile's, and the next one's
            more_rows_load_columns(arrived, 0, lane, columns[0]);
            FEW_ROWS_UNROLL
            for (int tile = 0; tile < NT; ++tile) {
                if (tile + 1 < NT) {
                    more_rows_load_columns(arrived, tile + 1, lane, columns[(tile + 1) % 2]);
                }
                FEW_ROWS_UNROLL
                for (int m = 0; m < MORE_ROWS_TILES; ++m) {
                    weights.multiply(columns[tile % 2], m, sums[tile][m]);
                }
                if (tile == 0) {
                    unpack(current); // the next ones, while there is other work
                }
            }
        }
        __syncwarp();
        // sums go where the weights of the last step were: for a team that had fewer steps as well, which has nothing
        // more to come
        const int last  = chunk / n_teams * MORE_ROWS_CHUNK + min(MORE_ROWS_CHUNK, n_blocks - chunk) - 1;
        char *    first = shared + stream_type::RING_SIZE + last % 2 * MORE_ROWS_UNPACKED;
        more_rows_add_chunks(sums, first, 2 * MORE_ROWS_UNPACKED, team_size, n_teams, n_chunks - chunk, results, warp,
                             lane);
    }
    more_rows_store<GATE>(p, matrix, row_0, n_rows, results, (float *) shared, n_teams, warp, lane);
}
