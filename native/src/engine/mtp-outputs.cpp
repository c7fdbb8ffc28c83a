#include "mtp-outputs.h"

void mtp_outputs::hold(ggml_tensor * logits, const mtp_candidates & reduced, ggml_backend_t backend) {
    held.logits  = logits;
    held.reduced = reduced;
    held.backend = backend;
}

void mtp_outputs::wait() {
    const int64_t begin = ggml_time_us();
    ctx.synchronize();
    t_us += ggml_time_us() - begin;
}

void mtp_outputs::fetch(float * data) {
    if (held.logits) {
        wait();
        ggml_backend_tensor_get_async(held.backend, held.logits, data, 0, ggml_nbytes(held.logits));
        ggml_backend_synchronize(held.backend);
        n_bytes += ggml_nbytes(held.logits);
        forget();
    }
}

bool mtp_outputs::find_highest(int32_t row, int32_t n, int32_t * ids, float * values) {
    auto & reduced = held.reduced;
    if (!held.logits || !reduced.blocks || n > reduced.blocks->ne[1]) {
        return false;
    }
    if (!reduced.is_fetched()) {
        wait();
        n_bytes += reduced.fetch(held.backend, candidates);
    }
    reduced.select(row, n, ids, values);
    return true;
}
