// What a device computes in the passes of a session, beside what llama.cpp's CPU backend does in F32. Knows single
// operations, no model.

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "guard.h"
#include "mtp-graph-edit.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace {

using floats = std::vector<float>;

constexpr int64_t N_VALUES = 1024; // of a row
constexpr int64_t N_OUT    = 96;
constexpr int64_t N_HEAD   = 64;   // values of a head of attention
constexpr int64_t N_HEADS  = 8;
constexpr int64_t N_GROUPS = 2;    // heads of keys and values
constexpr int64_t N_CELLS  = 320;

floats random_values(size_t n) {
    std::mt19937                          rng(n);
    std::uniform_real_distribution<float> value(-1.0f, 1.0f);
    floats                                res(n);
    std::generate(res.begin(), res.end(), [&] { return value(rng); });
    return res;
}

// Values as a type keeps them, and what these are.
struct stored {
    stored(ggml_type type, int64_t n_rows, int64_t n_per_row) : values(random_values(n_rows * n_per_row)) {
        const pymtp_catch_asserts catching; // of a type that cannot be quantized, or only with more
        data.resize(n_rows * ggml_row_size(type, n_per_row));
        ggml_quantize_chunk(type, values.data(), data.data(), 0, n_rows, n_per_row, nullptr);
        if (type != GGML_TYPE_F32) {
            ggml_get_type_traits(type)->to_float(data.data(), values.data(), values.size());
        }
    }

    floats               values;
    std::vector<uint8_t> data;
};

// One operation with weights or caches of a type, on rows of which each has N_VALUES or N_HEADS * N_HEAD values.
struct operation {
    ggml_type type;
    bool      is_attention;
    int64_t   n_rows;
    stored    first  = is_attention ? stored(type, N_CELLS * N_GROUPS, N_HEAD) : stored(type, N_OUT, N_VALUES);
    stored    second = is_attention ? stored(type, N_CELLS * N_GROUPS, N_HEAD) : stored(type, 1, N_VALUES);
    // products round activations to 8 bits: these are so already
    floats    rows   = stored(is_attention ? GGML_TYPE_F32 : GGML_TYPE_Q8_0, n_rows, n_per_row()).values;

    int64_t n_per_row() const { return is_attention ? N_HEADS * N_HEAD : N_VALUES; }
};

// An operation on a device, where its weights or caches stay: a backend is slow to open, and may compile kernels.
class on_device {
  public:
    // in_floats: as numbers of F32, by llama.cpp's own kernels
    on_device(const operation & of, ggml_backend_dev_t device, bool in_floats) :
        of(of), device(device), is_marked(!in_floats && mtp_allows_kernels(device)),
        backend(ggml_backend_dev_init(device, nullptr)), weights(ggml_init({ 1 << 16, nullptr, true })) {
        pymtp_refuse_if(!backend || !weights, "the device cannot be used");
        const ggml_type type = in_floats ? GGML_TYPE_F32 : of.type;
        if (of.is_attention) {
            one   = ggml_new_tensor_3d(weights.get(), type, N_HEAD, N_CELLS, N_GROUPS);
            other = ggml_new_tensor_3d(weights.get(), type, N_HEAD, N_CELLS, N_GROUPS);
        } else {
            one = ggml_new_tensor_2d(weights.get(), type, N_VALUES, N_OUT);
        }
        buffer.reset(ggml_backend_alloc_ctx_tensors(weights.get(), backend.get()));
        if (!buffer) {
            throw std::bad_alloc();
        }
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        const auto set = [&](ggml_tensor * tensor, const stored & from) {
            const void * data = in_floats ? (const void *) from.values.data() : from.data.data();
            ggml_backend_tensor_set(tensor, data, 0, ggml_nbytes(tensor));
        };
        set(one, of.first);
        if (other) {
            set(other, of.second);
        }
    }

    // of rows [begin, begin + n)
    floats rows(int64_t begin, int64_t n) const {
        ggml_context_ptr nodes(ggml_init({ 1 << 16, nullptr, true }));
        if (!nodes) {
            throw std::bad_alloc();
        }
        ggml_context * ctx   = nodes.get();
        ggml_tensor *  input = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, of.n_per_row(), n);
        ggml_tensor *  mask  = other ? ggml_new_tensor_2d(ctx, GGML_TYPE_F16, N_CELLS, n) : nullptr;
        ggml_tensor *  out;
        if (other) {
            auto * queries = ggml_permute(ctx, ggml_reshape_3d(ctx, input, N_HEAD, N_HEADS, n), 0, 2, 1, 3);
            out            = ggml_flash_attn_ext(ctx, queries, one, other, mask, 1.0f, 0.0f, 0.0f);
        } else {
            out = ggml_mul_mat(ctx, one, input);
        }
        pymtp_refuse_if(!ggml_backend_dev_supports_op(device, out), "the device does not compute that");
        ggml_cgraph * graph = ggml_new_graph_custom(ctx, 16, false);
        ggml_build_forward_expand(graph, out);
        for (int i = 0; i < ggml_graph_n_nodes(graph) && is_marked; ++i) {
            ggml_graph_node(graph, i)->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
        }
        ggml_backend_buffer_ptr nodes_buffer(ggml_backend_alloc_ctx_tensors(ctx, backend.get()));
        if (!nodes_buffer) {
            throw std::bad_alloc();
        }
        if (mask) {
            ggml_backend_tensor_memset(mask, 0, 0, ggml_nbytes(mask));
        }
        ggml_backend_tensor_set(input, of.rows.data() + begin * of.n_per_row(), 0, ggml_nbytes(input));
        pymtp_refuse_if(ggml_backend_graph_compute(backend.get(), graph) != GGML_STATUS_SUCCESS, "the device failed");
        floats res(ggml_nelements(out));
        ggml_backend_tensor_get(out, res.data(), 0, ggml_nbytes(out));
        return res;
    }

  private:
    const operation &       of;
    ggml_backend_dev_t      device;
    const bool              is_marked; // the kernels of pymtp may compute it
    ggml_backend_ptr        backend;
    ggml_context_ptr        weights;
    ggml_backend_buffer_ptr buffer;
    ggml_tensor *           one   = nullptr;
    ggml_tensor *           other = nullptr; // of attention
};

// the largest difference, of the largest value
double difference(const floats & seen, const floats & expected) {
    double res   = 0.0;
    double scale = 0.0;
    for (size_t i = 0; i < seen.size(); ++i) {
        const double error = std::fabs((double) seen[i] - expected[i]);
        res                = std::isfinite(error) ? std::max(res, error) : INFINITY;
        scale              = std::max(scale, std::fabs((double) expected[i]));
    }
    return res / scale;
}

} // namespace

int32_t pymtp_check_operation(ggml_backend_dev_t device, int32_t type, int32_t is_attention, const int32_t * n_rows,
                              int32_t n, double * error, double * company) {
    return pymtp_guard([&] {
        pymtp_need(device, "the device");
        pymtp_need_array(n_rows, n, MTP_SINGLE_ROWS_MAX, "numbers of rows");
        const int32_t * end = n_rows + n;
        pymtp_refuse_if(type < 0 || type >= GGML_TYPE_COUNT || n < 1 || *std::min_element(n_rows, end) < 1 ||
                            *std::max_element(n_rows, end) > (int32_t) MTP_SINGLE_ROWS_MAX,
                        "1 to %d rows of one of ggml's types are possible", MTP_SINGLE_ROWS_MAX);
        pymtp_refuse_if((is_attention ? N_HEAD : N_VALUES) % ggml_blck_size((ggml_type) type) != 0,
                        "no whole number of blocks fits a row");
        const operation of{ (ggml_type) type, is_attention != 0, *std::max_element(n_rows, end) };
        const on_device there(of, device, false);
        const on_device here(of, ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), true);
        const floats    expected = here.rows(0, of.n_rows);
        floats          alone;
        for (int64_t row = 0; row < of.n_rows; ++row) {
            const floats res = there.rows(row, 1);
            alone.insert(alone.end(), res.begin(), res.end());
        }
        double & largest = pymtp_need(error, "the error") = 0.0;
        double & changed = pymtp_need(company, "the difference") = 0.0;
        for (; n_rows < end; ++n_rows) {
            const floats together = there.rows(0, *n_rows);
            largest               = std::max(largest, difference(together, expected));
            changed               = std::max(changed, difference(together, alone));
        }
    });
}

int32_t pymtp_allow_kernels(ggml_backend_dev_t device, int32_t allowed) {
    return pymtp_guard([&] {
        pymtp_need(device, "the device");
        mtp_allow_kernels(device, allowed != 0);
    });
}
