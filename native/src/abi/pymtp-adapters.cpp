// The C interface: LoRA adapters, and rows of weights in another type.

#include "llama-cpp.h"
#include "llama-model.h"
#include "mtp-adapters.h"
#include "pymtp-session.h"

#include <cmath>
#include <string>

static constexpr int32_t N_ADAPTERS_MAX = 1024;

int32_t pymtp_adapter_load(llama_model * model, const char * path, llama_adapter_lora ** adapter) {
    return pymtp_guard([&] {
        pymtp_need(adapter, "the adapter") = nullptr;
        pymtp_need(model, "the model");
        pymtp_need(path, "the path");
        const pymtp_catch_asserts asserts;

        pymtp_log_take();
        llama_adapter_lora_ptr loaded(llama_adapter_lora_init(model, path));
        if (!loaded) {
            const char * log = pymtp_log_take();
            pymtp_check_lost(log);
            const std::string why = pymtp_log_after(log, "failed to apply lora adapter: ");
            pymtp_refuse("%s", why.empty() ? "llama.cpp cannot read it" : why.c_str());
        }
        pymtp_fails_as(PYMTP_INVALID, "%s", [&] { mtp_adapter_check(*loaded); });
        *adapter = loaded.release();
    });
}

int32_t pymtp_session_adapt(pymtp_session * session, int32_t n, llama_adapter_lora * const * adapter,
                            const float * scale) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        pymtp_need_array(adapter, n, N_ADAPTERS_MAX, "adapters");
        pymtp_need_array(scale, n, N_ADAPTERS_MAX, "scales");
        const auto & known = llama_get_model(self.ctx)->loras;
        for (int32_t i = 0; i < n; ++i) {
            pymtp_refuse_if(known.count(adapter[i]) == 0, "adapter %d does not belong to the session's model", i);
            pymtp_refuse_if(!std::isfinite(scale[i]), "the scale of adapter %d is no number", i);
        }
        forget_outputs(self);
        const std::string obstacle = self.mtp->adapt({ adapter, adapter + n }, { scale, scale + n });
        pymtp_refuse_if(!obstacle.empty(), "%s", obstacle.c_str());
    });
}

int32_t pymtp_convert_rows(int32_t from, int32_t to, int64_t n_rows, int64_t n_per_row, const void * rows,
                           void * converted) {
    return pymtp_guard([&] {
        const auto type_from = (ggml_type) from;
        const auto type_to   = (ggml_type) to;
        const bool is_type   = from >= 0 && from < GGML_TYPE_COUNT;
        const bool can_read  = from == GGML_TYPE_F32 || (is_type && ggml_get_type_traits(type_from)->to_float);
        pymtp_refuse_if(!can_read || !mtp_can_convert_to(type_to), "rows of the ggml_type %d cannot be converted to %d",
                        from, to);
        pymtp_need_array(rows, n_rows, INT32_MAX, "rows");
        pymtp_need_array(converted, n_rows, INT32_MAX, "converted rows");
        pymtp_refuse_if(n_per_row < 1 || n_per_row > INT32_MAX || n_per_row % ggml_blck_size(type_from) != 0 ||
                            n_per_row % ggml_blck_size(type_to) != 0,
                        "rows of %lld numbers cannot be converted from %s to %s", (long long) n_per_row,
                        ggml_type_name(type_from), ggml_type_name(type_to));
        const int64_t n = mtp_convert_rows(type_from, type_to, n_rows, n_per_row, rows, converted);
        pymtp_refuse_if(n < n_rows, "row %lld holds numbers that are not finite", (long long) n);
    });
}
