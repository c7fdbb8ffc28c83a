#include "mtp-outputs.h"

void mtp_outputs::hold(ggml_tensor * logits, size_t n_rows, const mtp_candidates & reduced, ggml_backend_t backend) {
    held.logits  = logits;
    held.n_rows  = n_rows;
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
        const size_t size = held.n_rows * held.logits->nb[1];
        ggml_backend_tensor_get_async(held.backend, held.logits, data, 0, size);
        ggml_backend_synchronize(held.backend);
        n_bytes += size;
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
