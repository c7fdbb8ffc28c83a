// The CUDA kernels of few rows, run on the CPU: for every type of weights against a product in double precision, and bit
// for bit the same for a row alone as with others beside it; and those for more rows, against the same.

#include "check.h"
#include "cuda-emulation.h"
#include "cuda-few-rows-kernel.cuh"
#include "cuda-many-rows-kernel.cuh"
#include "cuda-more-rows-kernel.cuh"
#include "few-rows-order.h"
#include "random-values.h"

#include <cmath>

struct product {
    ggml_type                         type;
    int64_t                           n_values;
    int64_t                           n_out;
    int64_t                           n_experts; // 0: a plain product
    bool                              has_gate;
    bool                              has_bias;
    std::vector<std::vector<float>>   rows;
    std::vector<std::vector<int32_t>> experts; // of each row

    std::vector<uint8_t> matrix;
    std::vector<uint8_t> gate;
    std::vector<float>   bias;
};

static constexpr int64_t PADDING = 512; // values, of rows of activations

static std::vector<uint8_t> random_matrix(ggml_type type, int64_t n_rows, int64_t n_values) {
    auto                 values = random_quantized(type, n_rows, n_values);
    std::vector<uint8_t> res(values.size() + ggml_row_size(type, 512), 0xff); // as CUDA buffers have after a matrix
    std::copy(values.begin(), values.end(), res.begin());
    return res;
}

static product random_product(ggml_type type, int64_t n_values, int64_t n_out, int64_t n_rows, int64_t n_experts,
                              bool has_gate, bool has_bias) {
    product       p{ type, n_values, n_out, n_experts, has_gate, has_bias, {}, {}, {}, {}, {} };
    const int64_t n_matrix_rows = std::max<int64_t>(n_experts, 1) * n_out;
    p.matrix                    = random_matrix(type, n_matrix_rows, n_values);
    p.gate                      = random_matrix(type, n_matrix_rows, n_values);
    p.bias                      = random_values(n_out);
    for (int64_t i = 0; i < n_rows; ++i) {
        p.rows.push_back(random_values(n_values));
        if (n_experts) { // the first one is every row's
            p.experts.push_back({ 1, (int32_t) ((2 + i / 2) % n_experts) });
        }
    }
    return p;
}

// scale, sum and values, as the CUDA backend quantizes activations
static std::vector<uint8_t> quantize(const std::vector<float> & row) {
    std::vector<uint8_t> res((row.size() + PADDING - 1) / PADDING * PADDING / 32 * FEW_ROWS_Y_SIZE);
    for (size_t i = 0; i < row.size(); i += 32) {
        uint8_t * block   = res.data() + i / 32 * FEW_ROWS_Y_SIZE;
        float     highest = 0.0f;
        for (int k = 0; k < 32; ++k) {
            highest = std::max(highest, std::fabs(row[i + k]));
        }
        const ggml_fp16_t d = ggml_fp32_to_fp16(highest / 127.0f);
        std::memcpy(block, &d, sizeof(d));
        for (int k = 0; k < 32; ++k) {
            block[4 + k] = (uint8_t) (int8_t) std::lround(row[i + k] / (highest / 127.0f));
        }
    }
    return res;
}

static std::vector<float> unquantize(const std::vector<uint8_t> & row, int64_t n_values) {
    std::vector<float> res(n_values);
    for (int64_t i = 0; i < n_values; ++i) {
        const uint8_t * block = row.data() + i / 32 * FEW_ROWS_Y_SIZE;
        ggml_fp16_t     d;
        std::memcpy(&d, block, sizeof(d));
        res[i] = ggml_fp16_to_fp32(d) * (int8_t) block[4 + i % 32];
    }
    return res;
}

struct quantized_rows {
    std::vector<uint8_t> columns;
    std::vector<int32_t> ids;
};

static quantized_rows quantize_rows(const product & p, size_t begin, size_t end) {
    quantized_rows res;
    for (size_t i = begin; i < end; ++i) {
        const auto row = quantize(p.rows[i]);
        res.columns.insert(res.columns.end(), row.begin(), row.end());
        if (p.n_experts) {
            res.ids.insert(res.ids.end(), p.experts[i].begin(), p.experts[i].end());
        }
    }
    return res;
}

// as a GPU is given it, for results in res; the matrix cut into several that are multiplied together
static few_rows_product describe(const product & p, const quantized_rows & rows, int n_tokens, int n_matrices,
                                 std::vector<float> & res) {
    const auto       n_places = (int) (p.n_experts ? p.experts[0].size() : 1);
    few_rows_product given    = {};
    given.gate                = p.has_gate ? (const char *) p.gate.data() : nullptr;
    given.columns             = (const char *) rows.columns.data();
    given.ids                 = p.n_experts ? rows.ids.data() : nullptr;
    given.glu_op              = GGML_GLU_OP_SWIGLU;
    given.n_parts             = (int) (p.n_values / FEW_ROWS_PART);
    given.column_size         = (given.n_parts * 2 * FEW_ROWS_Y_SIZE + 15) / 16 * 16;
    given.n_tokens            = n_tokens;
    given.n_places            = n_places;
    given.n_column_places     = 1;
    given.ids_stride          = n_places;
    given.row_stride          = (int64_t) ggml_row_size(p.type, p.n_values);
    given.expert_stride       = given.row_stride * p.n_out;
    given.column_stride       = (int64_t) (rows.columns.size() / n_tokens);
    given.column_place_stride = given.column_stride;
    given.dst_place_stride    = p.n_out;
    given.n_matrices          = n_matrices;
    for (int m = 0; m < n_matrices; ++m) {
        const int64_t first = p.n_out * m / n_matrices;
        const int64_t last  = p.n_out * (m + 1) / n_matrices;
        given.matrices[m]   = { (const char *) p.matrix.data() + first * given.row_stride,
                                res.data() + first,
                                n_places * p.n_out,
                                (int) (last - first),
                                0,
                                p.has_bias ? p.bias.data() + first : nullptr,
                                0 };
    }
    CHECK_EQUAL((uintptr_t) given.matrices[0].data % 16, 0u);
    return given;
}

// From the first to the last and from the last to the first, in turn: a device may take them in any order.
template <class Kernel> static void run_blocks(int n_x, int n_y, int n_warps, size_t shared_size, Kernel kernel) {
    static bool is_backwards = false;

    is_backwards = !is_backwards;
    gridDim      = { (unsigned) n_x, (unsigned) n_y };
    for (int y = 0; y < n_y; ++y) {
        for (int x = 0; x < n_x; ++x) {
            emulated_block block(n_warps * FEW_ROWS_LANES, shared_size);
            blockIdx = { (unsigned) (is_backwards ? n_x - 1 - x : x), (unsigned) y };
            std::fill(block.shared.begin(), block.shared.end(), (char) 0x7f);
            block.run(kernel);
        }
    }
}

// of the rows [begin, end), by the kernel for N columns
template <class T, int N, bool GATE>
static std::vector<float> compute(const product & p, size_t begin, size_t end, const few_rows_device & device,
                                  int n_matrices) {
    const int          n_tokens = (int) (end - begin);
    const auto         rows     = quantize_rows(p, begin, end);
    std::vector<float> res(n_tokens * (p.n_experts ? p.experts[0].size() : 1) * p.n_out, NAN);
    few_rows_product   given = describe(p, rows, n_tokens, n_matrices, res);

    CHECK(few_rows_divide<T>(given, N, GATE, device));
    const few_rows_memory<T> memory(given, N, GATE);
    CHECK(memory.size <= device.shared_size);
    run_blocks(given.n_blocks, p.n_experts ? n_tokens * given.n_places : 1, given.n_warps, memory.size,
               [&] { few_rows_kernel<T, N, GATE>(given); });
    return res;
}

template <class T, bool GATE>
static std::vector<float> compute(const product & p, size_t begin, size_t end, const few_rows_device & device,
                                  int n_matrices) {
    switch (few_rows_columns((int) (end - begin), p.n_experts > 0)) {
        case 1:
            return compute<T, 1, GATE>(p, begin, end, device, n_matrices);
        case 2:
            return compute<T, 2, GATE>(p, begin, end, device, n_matrices);
        case 3:
            return compute<T, 3, GATE>(p, begin, end, device, n_matrices);
        case 4:
            return compute<T, 4, GATE>(p, begin, end, device, n_matrices);
        default:
            return compute<T, 8, GATE>(p, begin, end, device, n_matrices);
    }
}

static double dot(const product & p, const std::vector<uint8_t> & matrix, int64_t row, const std::vector<float> & with,
                  double & scale) {
    std::vector<float> weights(p.n_values);
    ggml_get_type_traits(p.type)->to_float(matrix.data() + row * ggml_row_size(p.type, p.n_values), weights.data(),
                                           p.n_values);
    double res = 0.0;
    scale      = 0.0;
    for (int64_t i = 0; i < p.n_values; ++i) {
        res += (double) weights[i] * with[i];
        scale += std::fabs((double) weights[i] * with[i]);
    }
    return res;
}

// tolerance: of what is added, without signs
static void check_values(const product & p, const std::vector<float> & res, bool is_quantized, double tolerance) {
    size_t at = 0;
    for (const auto & values : p.rows) {
        const auto row = is_quantized ? unquantize(quantize(values), p.n_values) : values;
        const auto i   = &values - p.rows.data();
        for (const int32_t expert : p.n_experts ? p.experts[i] : std::vector<int32_t>{ 0 }) {
            for (int64_t k = 0; k < p.n_out; ++k, ++at) {
                double scale;
                double gate_scale = 0.0;
                double expected   = dot(p, p.matrix, expert * p.n_out + k, row, scale) + (p.has_bias ? p.bias[k] : 0.0);
                if (p.has_gate) {
                    const double gate = dot(p, p.gate, expert * p.n_out + k, row, gate_scale);
                    expected *= gate / (1.0 + std::exp(-gate));
                    scale *= 1.0 + gate_scale;
                }
                CHECK(std::fabs(res[at] - expected) <= tolerance * scale);
            }
        }
    }
}

template <class T> static void check(const product & p, const few_rows_device & device) {
    const auto run = [&](size_t begin, size_t end, int n_matrices = 1) {
        return p.has_gate ? compute<T, true>(p, begin, end, device, n_matrices) :
                            compute<T, false>(p, begin, end, device, n_matrices);
    };
    const auto together = run(0, p.rows.size());
    for (int n = 2; n <= FEW_ROWS_TOGETHER && !p.has_gate && !p.n_experts; ++n) {
        CHECK(run(0, p.rows.size(), n) == together);
    }
    std::vector<float> alone;
    for (size_t i = 0; i < p.rows.size(); ++i) {
        const auto row = run(i, i + 1);
        alone.insert(alone.end(), row.begin(), row.end());
    }
    CHECK(together == alone);

    check_values(p, together, true, 1e-5);
}

template <class T> static void check_type(ggml_type type) {
    static constexpr few_rows_device DEVICES[] = {
        { 4, 48 << 10, false }, { 4, 64 << 10, false }, { 2, 99 << 10, false }, { 1, 227 << 10, true }
    };

    // more chunks than warps; a part of a chunk; rows that begin at any address their type has
    const int64_t n_block = ggml_blck_size(type) == 32 ? 64 : 256;
    int           i       = 0;
    for (const int64_t n_values : { n_block, 3 * n_block, (int64_t) 2048, 2048 + n_block, (int64_t) 4 * 2048 + 1024 }) {
        const bool is_long = n_values > 2048;
        for (const int64_t n_rows :
             is_long ? std::vector<int64_t>{ 1, 3, 8 } : std::vector<int64_t>{ 1, 2, 3, 4, 5, 6, 7, 8 }) {
            const int64_t n_out = n_values > 4096 ? 5 : 19;
            check<T>(random_product(type, n_values, n_out, n_rows, 0, i % 3 == 0, i % 2 == 0), DEVICES[i % 4]);
            ++i;
        }
    }
    check<T>(random_product(type, 9 * 2048 + n_block, 5, 3, 0, true, true), DEVICES[0]);
    check<T>(random_product(type, 9 * 2048 + n_block, 5, 8, 0, true, true), DEVICES[1]);
    check<T>(random_product(type, 2048 + n_block, 150, 4, 0, true, false), DEVICES[3]);
    for (const int64_t n_rows : { 1, 2, 3, 5, 8 }) {
        check<T>(random_product(type, 5 * n_block, 7, n_rows, 4, n_rows % 2 == 0, false), DEVICES[n_rows % 4]);
    }
}

// --- more rows ---

// the layout that the kernel for more rows wants, of rows as the other one has them
static quantized_rows in_tiles(const quantized_rows & rows, int n_tokens, int64_t n_values, int n_tiles) {
    const size_t         row_size = rows.columns.size() / n_tokens;
    std::vector<uint8_t> res(more_rows_size(n_values, 8 * n_tiles), 0xff);
    for (int n = 0; n < n_tokens; ++n) {
        for (int64_t k = 0; k < n_values / 32; ++k) {
            const uint8_t * from = rows.columns.data() + n * row_size + k * FEW_ROWS_Y_SIZE;
            uint8_t *       to   = res.data() + (k * n_tiles + n / 8) * MORE_ROWS_Y_SIZE;
            ggml_fp16_t     d;
            std::memcpy(&d, from, sizeof(d));
            int sum = 0;
            for (int i = 0; i < 32; ++i) {
                const int word                                         = i / 4;
                to[n % 8 * 32 + (word % 4 * 2 + word / 4) * 4 + i % 4] = from[4 + i];
                sum += (int8_t) from[4 + i];
            }
            const float scales[2] = { ggml_fp16_to_fp32(d), ggml_fp16_to_fp32(d) * (float) sum };
            std::memcpy(to + MORE_ROWS_Y_SCALES + n % 8 * 8, scales, sizeof(scales));
        }
    }
    return { res, rows.ids };
}

template <class T, int NT, bool GATE>
static std::vector<float> compute_more(const product & p, const few_rows_device & device, int n_matrices) {
    const int      n_tokens = (int) p.rows.size();
    quantized_rows rows;
    int            n_groups = 0;
    for (int i = 0; i < n_tokens; i += 8 * NT, ++n_groups) {
        const int  end   = std::min(i + 8 * NT, n_tokens);
        const auto tiles = in_tiles(quantize_rows(p, i, end), end - i, p.n_values, NT);
        rows.columns.insert(rows.columns.end(), tiles.columns.begin(), tiles.columns.end());
    }
    std::vector<float> res(n_tokens * p.n_out, NAN);
    few_rows_product   given = describe(p, rows, n_tokens, n_matrices, res);
    given.n_columns          = 8 * NT;
    given.n_groups           = n_groups;
    given.group_stride       = (int64_t) rows.columns.size() / n_groups;

    const size_t size = more_rows_divide<T, NT>(given, GATE, device);
    CHECK(size <= device.shared_size);
    run_blocks(given.n_blocks, n_groups, given.n_warps, size, [&] { more_rows_kernel<T, NT, GATE>(given); });
    return res;
}

// columns that have the same expert, as a GPU puts them together, with as many groups as there could be
struct expert_groups {
    std::vector<few_rows_group> groups;
    std::vector<int>            columns;
    int                         n_used = 0;

    expert_groups(const product & p, int width) {
        const int n_places = (int) p.experts[0].size();
        for (int expert = 0; expert < p.n_experts; ++expert) {
            int n = 0;
            for (int column = 0; column < (int) p.rows.size() * n_places; ++column) {
                if (p.experts[column / n_places][column % n_places] != expert) {
                    continue;
                }
                if (n++ % width == 0) {
                    groups.push_back({ expert, 0 });
                    columns.resize(groups.size() * width, -1);
                }
                columns[(groups.size() - 1) * width + groups.back().n_columns++] = column;
            }
        }
        n_used = (int) groups.size();
        groups.resize(more_rows_groups_max((int) p.rows.size() * n_places, (int) p.n_experts, width));
        columns.resize(groups.size() * width, -1);
    }

    // the rows of a group, for which others are put into another form
    product rows_of(const product & p, size_t group, int width) const {
        product part = p;
        part.rows.clear();
        for (int i = 0; i < groups[group].n_columns; ++i) {
            part.rows.push_back(p.rows[columns[group * width + i] / p.experts[0].size()]);
        }
        return part;
    }
};

// to_group: activations of the rows that it gets, for the kernel
template <class F>
static few_rows_product describe_experts(const product & p, const quantized_rows & all, int width,
                                         const expert_groups & groups, std::vector<uint8_t> & columns,
                                         std::vector<float> & res, F to_group) {
    for (int i = 0; i < groups.n_used; ++i) {
        const auto group = to_group(groups.rows_of(p, i, width));
        columns.insert(columns.end(), group.begin(), group.end());
    }
    few_rows_product given = describe(p, all, (int) p.rows.size(), 1, res);
    given.groups           = groups.groups.data();
    given.group_columns    = groups.columns.data();
    given.n_groups_used    = &groups.n_used;
    given.n_groups         = (int) groups.groups.size();
    given.n_columns        = width;
    given.columns          = (const char *) columns.data();
    given.group_stride     = (int64_t) columns.size() / groups.n_used;
    return given;
}

template <class T, int NT, bool GATE>
static std::vector<float> compute_experts(const product & p, const few_rows_device & device) {
    const expert_groups  groups(p, 8 * NT);
    const auto           all = quantize_rows(p, 0, p.rows.size());
    std::vector<uint8_t> columns;
    std::vector<float>   res(p.rows.size() * p.experts[0].size() * p.n_out, NAN);
    few_rows_product     given = describe_experts(p, all, 8 * NT, groups, columns, res, [](const product & part) {
        product alone   = part;
        alone.n_experts = 0;
        return in_tiles(quantize_rows(alone, 0, alone.rows.size()), (int) alone.rows.size(), alone.n_values, NT)
            .columns;
    });

    const size_t size = more_rows_divide<T, NT>(given, GATE, device);
    run_blocks(given.n_blocks, given.n_groups, given.n_warps, size, [&] { more_rows_kernel<T, NT, GATE>(given); });
    return res;
}

// K: see check_more
template <class T, class K, int NT, bool GATE>
static void check_experts(const product & p, const few_rows_device & device) {
    std::vector<float> expected;
    for (size_t i = 0; i < p.rows.size(); i += 8) {
        const auto rows = compute<T, GATE>(p, i, std::min(i + 8, p.rows.size()), device, 1);
        expected.insert(expected.end(), rows.begin(), rows.end());
    }
    const auto found = compute_experts<K, NT, GATE>(p, device);
    CHECK(found == expected);
}

// K: T, as the kernel for more rows has it
template <class T, bool GATE, class K = T>
static void check_more(const product & p, const few_rows_device & device, int n_matrices) {
    const auto         together = p.rows.size() > 8 ? compute_more<K, 2, GATE>(p, device, n_matrices) :
                                                      compute_more<K, 1, GATE>(p, device, n_matrices);
    std::vector<float> expected;
    for (size_t i = 0; i < p.rows.size(); i += 8) {
        const auto rows = compute<T, GATE>(p, i, std::min(i + 8, p.rows.size()), device, 1);
        expected.insert(expected.end(), rows.begin(), rows.end());
    }
    CHECK(together == expected);
}

// the same as those of few rows, which are right
template <class T> static void check_more_rows(ggml_type type) {
    static constexpr few_rows_device SMALL{ 1, 64 << 10, false };
    static constexpr few_rows_device LARGE{ 8, 227 << 10, false };

    check_more<T, false>(random_product(type, 256, 5, 9, 0, false, true), SMALL, 1);
    check_more<T, true>(random_product(type, 768, 33, 16, 0, true, true), LARGE, 1);
    check_more<T, false>(random_product(type, 3 * 2048 + 512, 35, 12, 0, false, true), LARGE, 2);
    check_more<T, false>(random_product(type, 2048 + 256, 17, 13, 0, false, false), SMALL, 1);
    check_more<T, true>(random_product(type, 2 * 2048, 9, 16, 0, true, false), LARGE, 1);
    check_more<T, false>(random_product(type, 3 * 2048 + 256, 35, 5, 0, false, false), LARGE, 2);
    check_more<T, true>(random_product(type, 1024, 40, 8, 0, true, false), SMALL, 1);
    check_more<T, true>(random_product(type, 768, 20, 37, 0, true, true), LARGE, 1); // three groups
    check_experts<T, T, 1, true>(random_product(type, 1280, 20, 19, 5, true, false), LARGE);
    check_experts<T, T, 2, false>(random_product(type, 2048 + 256, 33, 20, 3, false, false), SMALL);
    if constexpr (T::N_VALUES == 64) { // rows that end with a part of 256 values
        check_more<T, true, few_rows_parts<T>>(random_product(type, 2048 + 192, 20, 9, 0, true, true), SMALL, 1);
        check_experts<T, few_rows_parts<T>, 2, false>(random_product(type, 2048 + 192, 33, 20, 3, false, false), SMALL);
        check_experts<T, few_rows_parts<T>, 1, false>(random_product(type, 1408, 35, 12, 6, false, false), LARGE);
    }
}

// --- many rows ---

// as halves, in the layout that the kernel for many rows wants
static std::vector<uint8_t> in_halves(const product & p, int n_tiles) {
    const int64_t        n_padded = (p.n_values + 255) / 256 * 256;
    std::vector<uint8_t> res(many_rows_size(p.n_values, 8 * n_tiles), 0x7f);
    for (size_t n = 0; n < p.rows.size(); ++n) {
        const float factor = n % 2 ? 1.0f : 0.25f;
        std::memcpy(res.data() + 4 * n, &factor, sizeof(factor));
        for (int64_t i = 0; i < n_padded; ++i) {
            // a word of 4 values of each quarter of 256 makes 16: their first halves, then their second ones
            const int64_t     half   = i / 256 * MANY_ROWS_HALVES + i % 64 / 4 * 2 + i % 4 / 2;
            const int64_t     place  = i % 256 / 64 * 2 + i % 2;
            const ggml_fp16_t value  = ggml_fp32_to_fp16(i < p.n_values ? p.rows[n][i] / factor : 0.0f);
            const size_t      column = (half * n_tiles + n / 8) * MANY_ROWS_TILE_SIZE + n % 8 * 16;
            std::memcpy(res.data() + MANY_ROWS_HEADER + column + place * 2, &value, sizeof(value));
        }
    }
    return res;
}

static constexpr int FEW_BLOCKS = 2; // multiprocessors of a device for which a few hundred rows are not few

template <class T, int NT, bool GATE, bool EXPERTS>
static void run_many(few_rows_product & given, const few_rows_device & device) {
    const auto division = many_rows_divide<T>(given, device);
    CHECK_EQUAL(division.n_tiles, NT);
    CHECK(division.shared_size <= device.shared_size);
    CHECK(given.n_warps <= (many_rows_most_warps<T, NT>()));
    if (device.n_multiprocessors == FEW_BLOCKS && !EXPERTS) { // none is smaller to have more of them
        CHECK(given.n_warps >= 8 && division.n_blocks > 1);
    }
    const size_t          n_sums = division.n_blocks * given.n_warps;
    std::vector<float4>   sums(2 * n_sums * many_rows_sums_size<NT>() / sizeof(float4));
    std::vector<unsigned> counters(n_sums);
    given.sums     = (char *) sums.data();
    given.counters = counters.data();
    run_blocks(division.n_blocks, 1, given.n_warps, division.shared_size,
               [&] { many_rows_kernel<T, NT, GATE, EXPERTS>(given); });
    CHECK(counters == std::vector<unsigned>(counters.size()));
}

template <class T, int NT, bool GATE>
static std::vector<float> compute_many(const product & p, const few_rows_device & device, int n_matrices) {
    const int            n_tokens = (int) p.rows.size();
    const int            n_tiles  = many_rows_all_tiles(n_tokens);
    const quantized_rows rows{ in_halves(p, n_tiles), {} };
    std::vector<float>   res(n_tokens * p.n_out, NAN);
    few_rows_product     given = describe(p, rows, n_tokens, n_matrices, res);
    given.column_stride        = n_tiles * MANY_ROWS_TILE_SIZE;
    run_many<T, NT, GATE, false>(given, device);
    return res;
}

template <class T, int NT, bool GATE>
static void check_many_experts(const product & p, const few_rows_device & device) {
    const expert_groups  groups(p, 8 * NT);
    const auto           all = quantize_rows(p, 0, p.rows.size());
    std::vector<uint8_t> columns;
    std::vector<float>   res(p.rows.size() * p.experts[0].size() * p.n_out, NAN);
    few_rows_product     given = describe_experts(p, all, 8 * NT, groups, columns, res,
                                                  [](const product & part) { return in_halves(part, NT); });
    given.column_stride        = NT * MANY_ROWS_TILE_SIZE;
    run_many<T, NT, GATE, true>(given, device);
    check_values(p, res, false, 1e-3);
}

template <class T, int NT, bool GATE>
static void check_many(const product & p, const few_rows_device & device, int n_matrices) {
    const auto together = compute_many<T, NT, GATE>(p, device, n_matrices);
    check_values(p, together, false, 1e-3);
    if (NT == 8 && p.rows.size() <= 64) { // the first columns alone
        product part = p;
        part.rows.resize(9);
        CHECK(std::equal(together.begin(), together.begin() + 9 * p.n_out,
                         compute_many<T, 2, GATE>(part, device, n_matrices).begin()));
    }
}

// tiles whose steps are of one thread block, of two, of many; parts of tiles; rows that begin at any address
template <class K> static void check_many_rows(ggml_type type) {
    using T = typename many_rows_type<K>::type;
    static constexpr few_rows_device SMALL{ 1, 64 << 10, false };
    static constexpr few_rows_device MIDDLE{ 3, 99 << 10, false };
    static constexpr few_rows_device LARGE{ 8, 227 << 10, false };
    static constexpr few_rows_device HOPPER{ 3, 227 << 10, true };
    static constexpr few_rows_device FEW{ FEW_BLOCKS, 227 << 10, false };

    check_many<T, 2, false>(random_product(type, 256, 5, 9, 0, false, true), SMALL, 1);
    check_many<T, 2, true>(random_product(type, 768, 33, 16, 0, true, true), LARGE, 1);
    check_many<T, 2, false>(random_product(type, 2304, 35, 15, 0, false, false), MIDDLE, 2);
    check_many<T, 4, false>(random_product(type, 1280, 140, 31, 0, false, false), LARGE, 1);
    check_many<T, 8, true>(random_product(type, 1536, 70, 41, 0, true, false), LARGE, 1);
    check_many<T, 8, false>(random_product(type, 512, 9, 67, 0, false, false), LARGE, 1);
    check_many<T, 4, false>(random_product(type, 768, 300, 17, 0, false, true), FEW, 1);
    check_many<T, 8, true>(random_product(type, 768, 140, 33, 0, true, true), FEW, 1);
    check_many<T, 16, false>(random_product(type, 2304, 33, 131, 0, false, true), HOPPER, 1);
    check_many_experts<T, 4, true>(random_product(type, 768, 70, 41, 3, true, false), LARGE);
    check_many_experts<T, 2, false>(random_product(type, 512, 33, 19, 5, false, false), SMALL);
    product few_of_many = random_product(type, 512, 140, 20, 36, false, false); // for more thread blocks than steps
    few_of_many.experts.assign(20, { 1, 2 });
    check_many_experts<T, 4, false>(few_of_many, { 132, 227 << 10, true });
    if constexpr (T::N_VALUES == 64) { // rows that end with a part of 256 values
        check_many<few_rows_parts<T>, 4, true>(random_product(type, 1408, 33, 20, 0, true, false), MIDDLE, 1);
        check_many_experts<few_rows_parts<T>, 8, false>(random_product(type, 704, 70, 50, 2, false, false), LARGE);
    }
    check_many<T, 16, false>(random_product(type, 2304, 35, 67, 0, false, false), HOPPER, 2);
    check_many<T, 16, true>(random_product(type, 1280, 260, 67, 0, true, false), HOPPER, 1);
}

static void q8_0_is_right_and_rows_do_not_matter() {
    check_type<few_rows_q8_0>(GGML_TYPE_Q8_0);
    check_more_rows<few_rows_q8_0>(GGML_TYPE_Q8_0);
    check_many_rows<few_rows_q8_0>(GGML_TYPE_Q8_0);
}

static void q4_0_is_right_and_rows_do_not_matter() {
    check_type<few_rows_q4_0>(GGML_TYPE_Q4_0);
    check_more_rows<few_rows_q4_0>(GGML_TYPE_Q4_0);
    check_many_rows<few_rows_q4_0>(GGML_TYPE_Q4_0);
}

static void q5_0_is_right_and_rows_do_not_matter() {
    check_type<few_rows_q5_0>(GGML_TYPE_Q5_0);
    check_more_rows<few_rows_q5_0>(GGML_TYPE_Q5_0);
    check_many_rows<few_rows_q5_0>(GGML_TYPE_Q5_0);
}

static void iq4_nl_is_right_and_rows_do_not_matter() {
    check_type<few_rows_iq4_nl>(GGML_TYPE_IQ4_NL);
    check_more_rows<few_rows_iq4_nl>(GGML_TYPE_IQ4_NL);
    check_many_rows<few_rows_iq4_nl>(GGML_TYPE_IQ4_NL);
}

static void mxfp4_is_right_and_rows_do_not_matter() {
    check_type<few_rows_mxfp4>(GGML_TYPE_MXFP4);
    check_more_rows<few_rows_mxfp4>(GGML_TYPE_MXFP4);
    check_many_rows<few_rows_mxfp4>(GGML_TYPE_MXFP4);
}

static void q3_K_is_right_and_rows_do_not_matter() {
    check_type<few_rows_q3_K>(GGML_TYPE_Q3_K);
    check_more_rows<few_rows_q3_K>(GGML_TYPE_Q3_K);
    check_many_rows<few_rows_q3_K>(GGML_TYPE_Q3_K);
}

static void q4_K_is_right_and_rows_do_not_matter() {
    check_type<few_rows_q4_K>(GGML_TYPE_Q4_K);
    check_more_rows<few_rows_q4_K>(GGML_TYPE_Q4_K);
    check_many_rows<few_rows_q4_K>(GGML_TYPE_Q4_K);
}

static void q5_K_is_right_and_rows_do_not_matter() {
    check_type<few_rows_q5_K>(GGML_TYPE_Q5_K);
    check_more_rows<few_rows_q5_K>(GGML_TYPE_Q5_K);
    check_many_rows<few_rows_q5_K>(GGML_TYPE_Q5_K);
}

static void q6_K_is_right_and_rows_do_not_matter() {
    check_type<few_rows_q6_K>(GGML_TYPE_Q6_K);
    check_more_rows<few_rows_q6_K>(GGML_TYPE_Q6_K);
    check_many_rows<few_rows_q6_K>(GGML_TYPE_Q6_K);
}

static void iq4_xs_is_right_and_rows_do_not_matter() {
    check_type<few_rows_iq4_xs>(GGML_TYPE_IQ4_XS);
    check_more_rows<few_rows_iq4_xs>(GGML_TYPE_IQ4_XS);
    check_many_rows<few_rows_iq4_xs>(GGML_TYPE_IQ4_XS);
}

// Rotated keys are stored right after their rotation, where values are made in between; nothing else is moved.
static void keys_are_stored_after_their_rotation() {
    ggml_context * ctx = ggml_init({ 1 << 20, nullptr, true });

    const auto matrix = [&](int64_t n, int64_t m) {
        return ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n, m);
    };
    ggml_tensor * keys   = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 8, 2, 3);
    ggml_tensor * places = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, 3);
    ggml_tensor * rope   = ggml_rope(ctx, keys, ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 3), 8, 0);
    ggml_tensor * values = ggml_reshape_3d(ctx, ggml_mul_mat(ctx, matrix(4, 16), matrix(4, 3)), 8, 2, 3);
    ggml_tensor * view   = ggml_view_2d(ctx, rope, 16, 3, rope->nb[2], 0);
    ggml_tensor * store  = ggml_set_rows(ctx, matrix(16, 10), view, places);
    ggml_tensor * others =
        ggml_set_rows(ctx, matrix(16, 10), ggml_view_2d(ctx, values, 16, 3, values->nb[2], 0), places);
    ggml_cgraph * graph = ggml_new_graph(ctx);
    for (ggml_tensor * node : { rope, values, store, others }) {
        ggml_build_forward_expand(graph, node);
    }
    CHECK(graph->nodes[0] == rope && graph->nodes[1] != view);
    std::vector<ggml_tensor *> expected(graph->nodes, graph->nodes + graph->n_nodes);
    std::rotate(expected.begin() + 1, std::find(expected.begin(), expected.end(), view),
                std::find(expected.begin(), expected.end(), store) + 1);
    few_rows_store_next(graph);
    CHECK(graph->nodes[1] == view && graph->nodes[2] == store);
    CHECK(std::equal(expected.begin(), expected.end(), graph->nodes));
    ggml_free(ctx);
}

// With the biases of weights, and those that stand alone, and after them those of other types; a product that a residual
// is added to stays.
static void products_and_their_biases_are_moved_together() {
    ggml_context *        ctx    = ggml_init({ 1 << 20, nullptr, true });
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 64);
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);

    ggml_tensor * rows = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 8, 4);
    const auto    bias = [&](ggml_backend_buffer_t where) {
        ggml_tensor * res = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 8);
        res->buffer       = where;
        return res;
    };
    const auto product = [&](ggml_type type = GGML_TYPE_F32) {
        return ggml_mul_mat(ctx, ggml_new_tensor_2d(ctx, type, 8, 8), rows);
    };
    ggml_tensor * query      = ggml_add(ctx, product(), bias(buffer));
    ggml_tensor * other      = product(GGML_TYPE_F16);
    ggml_tensor * value      = product();
    ggml_tensor * key        = ggml_add(ctx, product(), bias(buffer));
    ggml_tensor * residual   = ggml_add(ctx, product(), rows);
    ggml_tensor * computed   = ggml_add(ctx, product(), bias(nullptr)); // no weight
    ggml_tensor * squares[3] = { ggml_sqr(ctx, query), ggml_sqr(ctx, value), ggml_sqr(ctx, key) };
    ggml_cgraph * graph      = ggml_new_graph(ctx);
    for (ggml_tensor * node : { squares[0], other, residual, squares[1], computed, squares[2] }) {
        ggml_build_forward_expand(graph, node);
    }
    few_rows_gather(graph,
                    [&](int i) { return graph->nodes[i]->op == GGML_OP_MUL_MAT && !few_rows_is_fused(graph, i); });
    ggml_tensor * const expected[] = {
        query->src[0],    query,    value,      key->src[0],      key,      other,     squares[0],
        residual->src[0], residual, squares[1], computed->src[0], computed, squares[2]
    };
    CHECK(graph->n_nodes == 13 && std::equal(std::begin(expected), std::end(expected), graph->nodes));
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

int main() {
    RUN(q8_0_is_right_and_rows_do_not_matter);
    RUN(q4_0_is_right_and_rows_do_not_matter);
    RUN(q5_0_is_right_and_rows_do_not_matter);
    RUN(iq4_nl_is_right_and_rows_do_not_matter);
    RUN(mxfp4_is_right_and_rows_do_not_matter);
    RUN(q3_K_is_right_and_rows_do_not_matter);
    RUN(q4_K_is_right_and_rows_do_not_matter);
    RUN(q5_K_is_right_and_rows_do_not_matter);
    RUN(q6_K_is_right_and_rows_do_not_matter);
    RUN(iq4_xs_is_right_and_rows_do_not_matter);
    RUN(keys_are_stored_after_their_rotation);
    RUN(products_and_their_biases_are_moved_together);
    ggml_quantize_free();
    return g_n_failed > 0;
}
