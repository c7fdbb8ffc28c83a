#pragma once

// A product of a quantized matrix with groups of up to 16 rows of activations, on tensor cores.
//
// A team of four warps takes 32 matrix rows, and goes through chunks of 2048 values: of each 256 values a warp takes a
// quarter, and multiplies it with tiles of 8 columns. A lane unpacks what tensor cores want of it, which are 8 bytes of
// each block of 32 values; scales it reads for a row of its own, and leaves them to the warp. With a gate these are 16
// rows of the matrix and 16 of the gate.
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

    // rows[i]: the part of the lane's i-th matrix row, in shared memory; scales_at: from more_rows_scales()
    FEW_ROWS_FUNCTION void load(const char * const (&rows)[2 * MORE_ROWS_TILES], int part, const char * scales_at,
                                int lane) {
        const char * scales_of = scales_at + lane / 4 * 16;
        FEW_ROWS_UNROLL
        for (int m = 0; m < MORE_ROWS_TILES; ++m) {
            FEW_ROWS_UNROLL
            for (int half = 0; half < 2; ++half) {
                const int row = 16 * m + 8 * half;
                int       words[2][2];
                T::fragment(rows[2 * m + half], part, lane % 4, words);
                FEW_ROWS_UNROLL
                for (int b = 0; b < 2; ++b) {
                    values[m][b][half]     = words[b][0];
                    values[m][b][2 + half] = words[b][1];
                }
                const auto four = *(const more_rows_4_floats *) (scales_of + 16 * row);
                FEW_ROWS_UNROLL
                for (int i = 0; i < 4; ++i) {
                    scales[m][half][i] = four.of[i];
                }
                if constexpr (T::GROUP == 16) {
                    factors[m][half] = *(const float *) (scales_at + MORE_ROWS_FACTORS + 4 * (row + lane / 4));
                }
            }
        }
    }

    // adds to the sums of 16 matrix rows and a tile of columns
    FEW_ROWS_FUNCTION void multiply(const more_rows_columns & columns, int m, float (&sums)[4]) const {
        if constexpr (T::GROUP == 32) {
            const more_rows_tile dots[2] = { more_rows_multiply_32<T::HAS_MIN>(values[m][0], columns.values[0]),
                                             more_rows_multiply_32<T::HAS_MIN>(values[m][1], columns.values[1]) };
            FEW_ROWS_UNROLL
            for (int i = 0; i < 4; ++i) {
                const int half = i / 2;
                const int n    = i % 2;
                float     sum  = 0.0f;
                FEW_ROWS_UNROLL
                for (int b = 0; b < 2; ++b) {
                    const float dot = __int_as_float(dots[b].of[i]);
                    const float add =
                        __fmaf_rn(dot, columns.scales[b][n], -FEW_ROWS_BEGIN_FLOAT * columns.scales[b][n]);
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
                    const float second = few_rows_sum_of(dots[1].of[i]);
                    const float scale  = scales[m][half][2 * b];
                    // whole numbers, which a float has room for
                    float       dot    = __fmaf_rn(__int_as_float(dots[0].of[i]), scale, -FEW_ROWS_BEGIN_FLOAT * scale);
                    dot                = __fmaf_rn(second, scales[m][half][2 * b + 1], dot);
                    results[i]         = b == 0 ? __fmul_rn(columns.scales[b][i % 2], dot) :
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

// A lane reads the scales of a quarter of 256 values of its matrix row, for the whole warp.
template <class T> static FEW_ROWS_FUNCTION void more_rows_scales(const char * raw, int quarter, char * to, int lane) {
    constexpr int n_lanes = T::N_VALUES / FEW_ROWS_PART;
    const T       weights(raw + quarter / n_lanes * T::SIZE, quarter % n_lanes);

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
            scales[i] = weights.scale(i / 2, i % 2);
        }
        *(float *) (to + MORE_ROWS_FACTORS + 4 * lane) = weights.factor();
    }
    *(more_rows_4_floats *) (to + 16 * lane) = { scales[0], scales[1], scales[2], scales[3] };
}

// A team's way along its matrix rows: 256 values at a time, of one chunk after the other that it has, with the activations
// that they are multiplied with. A slot has both.
template <class T, int NT> struct more_rows_stream {
    static constexpr int ROW_SIZE  = few_rows_step_size<T>();
    static constexpr int PLACE     = few_rows_place_size<T>();
    static constexpr int Y_BEGIN   = MORE_ROWS_ROWS * PLACE; // in a slot
    static constexpr int Y_SIZE    = 8 * NT * MORE_ROWS_Y_SIZE;
    static constexpr int SLOT_SIZE = more_rows_step_size<T, NT>();
    static constexpr int IN_FLIGHT = more_rows_in_flight<T, NT>();
    static constexpr int RING_SIZE = IN_FLIGHT * SLOT_SIZE;
    static constexpr int N_THREADS = MORE_ROWS_TEAM * FEW_ROWS_LANES;
    using pieces                   = few_rows_pieces<T, N_THREADS, MORE_ROWS_ROWS>;

    const char * weights[pieces::N_COPIES]; // a lane's pieces
    int          to[pieces::N_COPIES];      // where it leaves them in a slot
    const char * columns;
    int          n_blocks;  // a row's last one may be a part of 256 values: what follows it is there, too
    int          n_skipped; // between chunks
    int          next;      // to fetch

    static FEW_ROWS_FUNCTION int before(int address) { return few_rows_is_aligned<T> ? 0 : address % FEW_ROWS_COPY; }

    // row_at: the address of a team's row
    template <class RowAt>
    FEW_ROWS_FUNCTION more_rows_stream(const few_rows_product & p, RowAt row_at, int in_team, int team, int n_teams) :
        columns(p.columns + blockIdx.y * p.group_stride + in_team * FEW_ROWS_COPY), n_blocks(few_rows_steps(p)),
        n_skipped((n_teams - 1) * MORE_ROWS_CHUNK), next(team * MORE_ROWS_CHUNK) {
        FEW_ROWS_UNROLL
        for (int i = 0; i < pieces::N_COPIES; ++i) {
            weights[i] = row_at(pieces::row(in_team, i)) + pieces::at(in_team, i);
            to[i]      = pieces::row(in_team, i) * PLACE + pieces::at(in_team, i);
        }
    }

    FEW_ROWS_FUNCTION int after(int block) const {
        return block + 1 + ((block + 1) % MORE_ROWS_CHUNK == 0 ? n_skipped : 0);
    }

    FEW_ROWS_FUNCTION void fetch_weights(char * slot) const {
        const bool    is_there = next < n_blocks;
        const int64_t at       = (int64_t) next * ROW_SIZE;
        FEW_ROWS_UNROLL
        for (int i = 0; i < pieces::N_COPIES; ++i) {
            const char * source  = weights[i] + at;
            const int    skipped = pieces::skipped(source);
            more_rows_copy_if(is_there && pieces::is_there(threadIdx.x % N_THREADS, i, skipped), slot + to[i],
                              source - skipped);
        }
    }

    FEW_ROWS_FUNCTION void fetch_columns(char * slot) const {
        const bool   is_there = next < n_blocks;
        const int    place    = threadIdx.x % N_THREADS * FEW_ROWS_COPY;
        const char * source   = columns + next * Y_SIZE;
        FEW_ROWS_UNROLL
        for (int at = 0; at < Y_SIZE; at += N_THREADS * FEW_ROWS_COPY) {
            const bool is_whole = at + N_THREADS * FEW_ROWS_COPY <= Y_SIZE;
            more_rows_copy_if(is_there && (is_whole || at + place < Y_SIZE), slot + Y_BEGIN + place + at, source + at);
        }
    }
};

// A lane's activations of a tile, from shared memory
static FEW_ROWS_FUNCTION void more_rows_load_columns(const char * arrived, int distance, int tile, int lane,
                                                     more_rows_columns & columns) {
    FEW_ROWS_UNROLL
    for (int b = 0; b < 2; ++b) {
        const char *            from  = arrived + (b * distance + tile) * MORE_ROWS_Y_SIZE;
        const few_rows_words<2> value = *(const few_rows_words<2> *) (from + lane * 8);
        const auto              scale = *(const more_rows_4_floats *) (from + MORE_ROWS_Y_SCALES + lane % 4 * 16);
        columns.values[b][0]          = value.of[0];
        columns.values[b][1]          = value.of[1];
        columns.scales[b][0]          = scale.of[0];
        columns.sums[b][0]            = scale.of[1];
        columns.scales[b][1]          = scale.of[2];
        columns.sums[b][1]            = scale.of[3];
    }
}

// Adds a chunk's sums of all teams to the results, of which the first warps have a tile each. A team's warps leave theirs at
// all + team * team_distance, where nothing is that they wait for.
template <int NT>
static FEW_ROWS_FUNCTION void more_rows_add_chunks(const float (&sums)[NT][MORE_ROWS_TILES][4], char * all,
                                                   int team_distance, int n_chunks, float (&results)[4], int warp,
                                                   int lane) {
    constexpr int n_tiles = MORE_ROWS_TILES * NT;
    constexpr int size    = n_tiles * FEW_ROWS_LANES * 16; // of a warp
    static_assert(n_tiles <= MORE_ROWS_TEAM);

    char * mine = all + warp / MORE_ROWS_TEAM * team_distance + warp % MORE_ROWS_TEAM * size + lane * 16;
    __syncthreads(); // all have read what is there
    FEW_ROWS_UNROLL
    for (int i = 0; i < n_tiles; ++i) {
        const float (&of)[4]                                     = sums[i / MORE_ROWS_TILES][i % MORE_ROWS_TILES];
        *(more_rows_4_floats *) (mine + i * FEW_ROWS_LANES * 16) = { of[0], of[1], of[2], of[3] };
    }
    __syncthreads();
    for (int chunk = 0; warp < n_tiles && chunk < n_chunks; ++chunk) {
        const char * from = all + chunk * team_distance + (warp * FEW_ROWS_LANES + lane) * 16;

        more_rows_4_floats quarters[MORE_ROWS_TEAM];
        FEW_ROWS_UNROLL
        for (int q = 0; q < MORE_ROWS_TEAM; ++q) {
            quarters[q] = *(const more_rows_4_floats *) (from + q * size);
        }
        FEW_ROWS_UNROLL
        for (int k = 0; k < 4; ++k) {
            results[k] += (quarters[0].of[k] + quarters[1].of[k]) + (quarters[2].of[k] + quarters[3].of[k]);
        }
    }
    __syncthreads();
}

// Stores what the product gives: results go through shared memory, so that rows that follow each other are stored together.
template <int NT, bool GATE>
static FEW_ROWS_FUNCTION void more_rows_store(const few_rows_product & p, const few_rows_matrix & matrix,
                                              const few_rows_group * group, int row_0, int n_rows,
                                              const float (&results)[4], float * all, int warp, int lane) {
    constexpr int stride = MORE_ROWS_ROWS + 1;
    if (warp < MORE_ROWS_TILES * NT) {
        FEW_ROWS_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int column           = warp / MORE_ROWS_TILES * 8 + lane % 4 * 2 + i % 2;
            const int row              = warp % MORE_ROWS_TILES * 16 + i / 2 * 8 + lane / 4;
            all[column * stride + row] = results[i];
        }
    }
    __syncthreads();
    constexpr int rows      = GATE ? MORE_ROWS_ROWS / 2 : MORE_ROWS_ROWS;
    const int     first     = blockIdx.y * p.n_columns;
    const int     n_columns = group ? group->n_columns : min(p.n_columns, p.n_tokens - first);
    for (int at = threadIdx.x; at < rows * n_columns; at += p.n_warps * FEW_ROWS_LANES) {
        const int row = at % rows;
        const int n   = at / rows;
        if (row >= n_rows) {
            continue;
        }
        const float * sums   = all + n * stride + row;
        const int     column = group ? p.group_columns[first + n] : first + n; // with experts, of all (token, place)
        matrix.dst[few_rows_result_at(p, matrix, column) + row_0 + row] =
            few_rows_finish<GATE>(p, matrix, column, row_0 + row, sums[0], sums[GATE * rows]);
    }
}

// 32 rows of a matrix, or 16 and as many of the gate. blockIdx.y: a group of columns
template <class T, int NT, bool GATE>
FEW_ROWS_LAUNCH_BOUNDS(512, 1)
static FEW_ROWS_KERNEL void more_rows_kernel(const few_rows_product p) {
    FEW_ROWS_SHARED(shared);

    const int warp     = threadIdx.x / FEW_ROWS_LANES;
    const int lane     = threadIdx.x % FEW_ROWS_LANES;
    const int team     = warp / MORE_ROWS_TEAM;
    const int quarter  = warp % MORE_ROWS_TEAM;
    const int in_team  = threadIdx.x % (MORE_ROWS_TEAM * FEW_ROWS_LANES);
    const int n_teams  = p.n_warps / MORE_ROWS_TEAM;
    const int n_blocks = few_rows_steps(p);

    const few_rows_group * group = p.groups ? p.groups + blockIdx.y : nullptr;
    if (group) {
        ggml_cuda_pdl_sync();
        if (group->n_columns == 0) {
            return;
        }
    }
    const int64_t           expert = group ? group->expert * p.expert_stride : 0;
    const few_rows_matrix & matrix = p.matrices[few_rows_matrix_at(p, blockIdx.x)];
    const int               row_0  = (blockIdx.x - matrix.first_block) * p.n_block_rows;
    const int               n_rows = min(p.n_block_rows, matrix.n_rows - row_0);
    const auto              row_at = [&](int i) {
        const bool in_gate = GATE && i >= MORE_ROWS_ROWS / 2;
        const int  row     = row_0 + min(in_gate ? i - MORE_ROWS_ROWS / 2 : i, n_rows - 1);
        return (in_gate ? p.gate : matrix.data) + expert + row * p.row_stride;
    };

    using stream_type        = more_rows_stream<T, NT>;
    constexpr int team_size  = more_rows_team_size<T, NT>();
    constexpr int n_lanes    = T::N_VALUES / FEW_ROWS_PART; // that would have a block of weights together
    constexpr int y_distance = (T::activations(0, 1) - T::activations(0, 0)) * NT; // between a warp's two blocks
    const int     y_block    = quarter / n_lanes * (T::N_VALUES / 32) + T::activations(quarter % n_lanes, 0);
    const int     y_begin    = stream_type::Y_BEGIN + y_block * NT * MORE_ROWS_Y_SIZE;
    char * const  slots      = shared + team * team_size;
    char *        scales     = slots + stream_type::RING_SIZE + quarter * 2 * MORE_ROWS_SCALES;
    char *        scales_2   = scales + MORE_ROWS_SCALES; // the next ones

    // the addresses, of which the last bits count, of the row that it reads scales of and of those that it unpacks
    const int scale_begin = (int) ((uintptr_t) row_at(lane) % FEW_ROWS_COPY);
    int       row_begins[2 * MORE_ROWS_TILES];
    FEW_ROWS_UNROLL
    for (int i = 0; i < 2 * MORE_ROWS_TILES; ++i) {
        row_begins[i] = (int) ((uintptr_t) row_at(8 * i + lane / 4) % FEW_ROWS_COPY);
    }

    stream_type stream(p, row_at, in_team, team, n_teams);
    const int   first = stream.next;
    FEW_ROWS_UNROLL
    for (int i = 0; i < stream_type::IN_FLIGHT - 1; ++i) { // they do not depend on what is still being computed
        stream.fetch_weights(slots + i * stream_type::SLOT_SIZE);
        stream.next = stream.after(stream.next);
    }
    few_rows_wait(p);
    stream.next = first;
    FEW_ROWS_UNROLL
    for (int i = 0; i < stream_type::IN_FLIGHT - 1; ++i) {
        stream.fetch_columns(slots + i * stream_type::SLOT_SIZE);
        stream.next = stream.after(stream.next);
        __pipeline_commit();
    }
    int        block       = team * MORE_ROWS_CHUNK;
    const auto read_scales = [&](const char * slot, char * to) {
        const int before = stream_type::before(scale_begin + block * stream_type::ROW_SIZE);
        more_rows_scales<T>(slot + lane * stream_type::PLACE + before, quarter, to, lane);
    };
    __pipeline_wait_prior(stream_type::IN_FLIGHT - 3);
    more_rows_sync_team(team);
    read_scales(slots, scales);

    float     results[4] = {};
    int       now        = 0; // slots
    int       next       = stream_type::SLOT_SIZE;
    int       free       = stream_type::RING_SIZE - stream_type::SLOT_SIZE;
    const int n_chunks   = (n_blocks + MORE_ROWS_CHUNK - 1) / MORE_ROWS_CHUNK;
    for (int chunk = 0; chunk < n_chunks; chunk += n_teams) {
        const int n = min(MORE_ROWS_CHUNK, n_blocks - (chunk + team) * MORE_ROWS_CHUNK);

        float sums[NT][MORE_ROWS_TILES][4] = {};
        for (int i = 0; i < n; ++i) {
            __pipeline_wait_prior(stream_type::IN_FLIGHT - 3);
            more_rows_sync_team(team); // no warp reads the free slot any more
            stream.fetch_weights(slots + free);
            stream.fetch_columns(slots + free);
            __pipeline_commit();
            stream.next = stream.after(stream.next);

            const char * rows[2 * MORE_ROWS_TILES];
            FEW_ROWS_UNROLL
            for (int k = 0; k < 2 * MORE_ROWS_TILES; ++k) {
                rows[k] = slots + now + (8 * k + lane / 4) * stream_type::PLACE + quarter / n_lanes * T::SIZE +
                          stream_type::before(row_begins[k] + block * stream_type::ROW_SIZE);
            }
            more_rows_weights<T> weights;
            weights.load(rows, quarter % n_lanes, scales, lane);

            const char * arrived  = slots + now + y_begin;
            const bool   is_there = !few_rows_in_parts<T> || block * FEW_ROWS_QUARTERS + quarter < p.n_parts;
            free                  = now;
            now                   = next;
            next  = next + stream_type::SLOT_SIZE < stream_type::RING_SIZE ? next + stream_type::SLOT_SIZE : 0;
            block = stream.after(block);

            more_rows_columns columns[2]; // a tile's, and the next one's
            more_rows_load_columns(arrived, y_distance, 0, lane, columns[0]);
            FEW_ROWS_UNROLL
            for (int tile = 0; tile < NT; ++tile) {
                if (tile + 1 < NT) {
                    more_rows_load_columns(arrived, y_distance, tile + 1, lane, columns[(tile + 1) % 2]);
                }
                FEW_ROWS_UNROLL
                for (int m = 0; is_there && m < MORE_ROWS_TILES; ++m) {
                    weights.multiply(columns[tile % 2], m, sums[tile][m]);
                }
                if (tile == 0) {
                    read_scales(slots + now, scales_2); // while there is other work
                }
            }
            char * const other = scales;
            scales             = scales_2;
            scales_2           = other;
        }
        // the first team's free slot: a team that had fewer steps waits for nothing any more
        const int last =
            chunk / n_teams * MORE_ROWS_CHUNK + min(MORE_ROWS_CHUNK, n_blocks - chunk * MORE_ROWS_CHUNK) - 1;
        char * all = shared + last % stream_type::IN_FLIGHT * stream_type::SLOT_SIZE;
        more_rows_add_chunks<NT>(sums, all, team_size, min(n_teams, n_chunks - chunk), results, warp, lane);
    }
    more_rows_store<NT, GATE>(p, matrix, group, row_0, n_rows, results, (float *) shared, warp, lane);
    few_rows_end(p);
}
