#include "mtp-heads.h"

#include "head-index.h"
#include "llama-io.h"
#include "llama-model.h"
#include "mtp-memory.h"
#include "mtp-refuse.h"

#include <algorithm>

mtp_heads::mtp_heads(llama_context & ctx, const params & params) :
    n_heads(params.n_heads), chained(params.chained), n_storing(params.assistant ? 0 : params.n_heads), ctx(ctx),
    assistant(params.assistant), rows(ctx.get_cparams().n_ubatch, ctx.get_cparams().n_seq_max),
    seen(n_storing, std::vector<mtp_seen>(ctx.get_cparams().n_seq_max)) {
    mtp_memory_set(&trunk_memory(), &mtp_reservation::pads_further, true);
    if (n_heads == 0) {
        return;
    }
    const auto & trunk = ctx.get_model();

    // the trunk's; where heads are chained one for each head as well
    plane_mem.resize(chained ? n_heads + 1 : 1);
    const auto buft = ggml_backend_dev_buffer_type(model().dev_layer(model().hparams.n_layer()));
    for (auto & plane : plane_mem) {
        plane_tensors.push_back(
            plane.alloc("mtp_hidden", GGML_TYPE_F32, trunk.hparams.n_embd_out(), rows.size(), buft));
    }
    if (assistant) {
        view = mtp_memory_create_view(*assistant, params.memory, ctx);
    } else if (!mtp_memory_can_share(&trunk_memory())) {
        own = mtp_memory_create_own(model(), params.memory, ctx.get_cparams());

        // a cache that is not larger is seen whole
        const uint32_t n_picked = head_index_n_picked(trunk.hparams);
        if (head_index_is_shared(trunk) && n_picked > 0 && n_picked < mtp_memory_caches(own.get())[0]->get_size()) {
            picked_mem.alloc("mtp_picked", GGML_TYPE_F32, n_picked, rows.size(), buft);
        }
    }
    mtp_memory_set(memory(), &mtp_reservation::pads_further, true);
}

// --- hidden states

void mtp_heads::copy_hidden(llama_seq_id seq, llama_pos pos, int32_t n, float * hidden) const {
    ctx.synchronize();
    const auto * plane = plane_tensors[0];
    for (int32_t i = 0; i < n; ++i) {
        ggml_backend_tensor_get(plane, hidden + i * plane->ne[0], rows.find(seq, pos + i) * plane->nb[1], plane->nb[1]);
    }
}

std::vector<int64_t> mtp_heads::place_trunk(const llama_ubatch & ubatch, const std::vector<int32_t> & n_fed) {
    rows.drop_transient();

    const auto is_added = [&](uint32_t i) {
        return n_fed[ubatch.data->batch_idxs[i]] < 0;
    };

    // from the back: how many rows of its sequence come after a row
    std::vector<uint32_t> n_after(ubatch.n_tokens, 0);
    std::vector<uint32_t> n_seen(ctx.get_cparams().n_seq_max, 0);
    for (uint32_t i = ubatch.n_tokens; i-- > 0;) {
        n_after[i] = n_seen[ubatch.seq_id[i][0]];
        n_seen[ubatch.seq_id[i][0]] += !is_added(i);
    }

    std::vector<int64_t> res(ubatch.n_tokens, mtp_rows::SPARE);
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const llama_seq_id seq = ubatch.seq_id[i][0];
        const llama_pos    pos = ubatch.pos[i];
        if (is_added(i)) {
            continue; // nobody reads it
        }
        // one kept row less: the last of the pass before is still to be read in this one
        res[i] = n_after[i] < mtp_rows::N_KEPT - 1 ? rows.put_trunk(seq, pos) : rows.put_transient(seq, pos, i);
    }
    return res;
}

std::vector<int64_t> mtp_heads::place_image(mtp_image_rows & image, uint32_t n_tokens,
                                            std::vector<int32_t> & rows_read) {
    rows.drop_transient();

    const llama_pos end = image.begin + image.n_pos;
    int32_t read = image.n_done == 0 ? std::max(mtp_rows::ZERO, rows.find(image.seq, image.begin - 1)) : image.last_row;

    std::vector<int64_t> res;
    for (uint32_t i = 0; i < n_tokens; ++i) {
        int32_t written = mtp_rows::transient_row(i);
        if (image.n_done + (int32_t) i + 1 == image.n_rows) {
            written = rows.put_trunk(image.seq, end - 1); // what the position after it reads
        } else if (i + 1 == n_tokens) {
            // what the next ubatch reads, which writes elsewhere; the image's end drops both
            written         = rows.put_trunk(image.seq, end + image.is_second);
            image.is_second = !image.is_second;
        }
        rows_read.push_back(read);
        res.push_back(written);
        read = written;
    }
    image.last_row = read;
    return res;
}

std::vector<int32_t> mtp_heads::find_read(const std::vector<mtp_row> & of) const {
    std::vector<int32_t> res;
    for (const auto & row : of) {
        // what a row reads that nothing is known before does not matter, see take
        res.push_back(std::max(mtp_rows::ZERO, rows.find(row.seq, row.pos - 1)));
    }
    return res;
}

std::vector<int64_t> mtp_heads::find_kept(const std::vector<mtp_row> & of) const {
    std::vector<int64_t> res;
    for (const auto & row : of) {
        res.push_back(std::max(mtp_rows::SPARE, rows.find(row.seq, row.pos)));
    }
    return res;
}

// --- what they have seen

// Chained, a head needs what the head before says of the position before.
void mtp_heads::take(const mtp_row & row, int32_t n) {
    for (int32_t head = 0; head < n; ++head) {
        seen[head][row.seq].adopt_draft(row.pos);
    }
    bool is_whole = has_hidden(row.seq, row.pos - 1);
    for (int32_t head = 0; head < n; ++head) {
        auto & cur = seen[head][row.seq];
        if (chained && head > 0 && row.pos > 0) {
            is_whole =
                has_hidden(row.seq, row.pos - 1) && cur.end >= row.pos && seen[head - 1][row.seq].has(row.pos - 1);
        }
        cur.take(row.pos, is_whole);
    }
}

void mtp_heads::take_image(const mtp_image_rows & image) {
    take({ 0, image.begin, image.seq, false }, image.n_heads);
    for (int32_t head = 0; head < image.n_heads; ++head) {
        for (llama_pos pos = image.begin + 1; pos < image.begin + image.n_pos; ++pos) {
            seen[head][image.seq].take(pos, true); // its rows read one another
        }
    }
}

llama_pos mtp_heads::seen_end(llama_seq_id seq, llama_pos end, int32_t n) const {
    llama_pos of_all = end;
    for (int32_t head = 0; head < std::min(n, n_storing); ++head) {
        of_all = std::min(of_all, seen[head][seq].end);
    }
    while (end > of_all && has_hidden(seq, end - 2)) {
        --end;
    }
    return end;
}

void mtp_heads::start_draft(const std::vector<mtp_row> & rows, int32_t n) {
    llama_pos begin = -1;
    for (const auto & row : rows) {
        begin = begin < 0 ? row.pos : begin;
        if (!row.output) {
            continue;
        }
        for (int32_t head = 0; head < n; ++head) {
            // chained, a head has nothing to read for as many rows as there are heads before it
            seen[head][row.seq].start_draft(begin, row.pos, chained ? head : 0);
        }
        begin = -1;
    }
}

void mtp_heads::forget_draft(const std::vector<mtp_row> & of) {
    for (const auto & row : of) {
        for (auto & of_head : seen) {
            of_head[row.seq].truncate(row.pos);
        }
        // what the trunk has decoded stays
        if (row.output && row.pos > trunk_memory().seq_pos_max(row.seq)) {
            rows.truncate(row.seq, row.pos);
            for (auto * kv : mtp_memory_caches(memory())) { // recurrent states stay as they are
                kv->seq_rm(row.seq, row.pos, -1);
            }
        }
    }
}

bool mtp_heads::hide_any(const std::vector<mtp_row> & of, int32_t n) const {
    return std::any_of(seen.begin(), seen.begin() + n, [&](const auto & by_seq) {
        return std::any_of(of.begin(), of.end(), [&](const auto & row) { return by_seq[row.seq].hides_any(); });
    });
}

void mtp_heads::set_input(int32_t head, llm_graph_input_i & input, const llama_ubatch & ubatch) const {
    if (head >= n_storing ||
        std::none_of(seen[head].begin(), seen[head].end(), [](const auto & one) { return one.hides_any(); })) {
        input.set_input(&ubatch);
        return;
    }
    const mtp_memory_scope gaps(memory(), &mtp_reservation::seen, &seen[head]);
    input.set_input(&ubatch);
}

// --- changes of sequences

void mtp_heads::truncate(llama_seq_id seq, llama_pos pos) {
    rows.truncate(seq, pos);
    for (auto & of_head : seen) {
        of_head[seq].truncate(pos);
    }
    if (own) {
        own->seq_rm(seq, pos, -1);
    }
}

void mtp_heads::release_drafts() {
    rows.drop_heads();
    for (auto * kv : mtp_memory_caches(&trunk_memory())) {
        kv->mtp_release();
    }
    for (uint32_t seq = 0; own && seq < ctx.get_cparams().n_seq_max; ++seq) {
        own->seq_rm(seq, trunk_memory().seq_pos_max(seq) + 1, -1);
    }
}

void mtp_heads::copy(llama_seq_id from, llama_seq_id to) {
    if (own) {
        own->seq_cp(from, to, -1, -1);
    }
    for (auto & of_head : seen) {
        of_head[to] = of_head[from];
    }
    rows.copy(from, to);

    // the kept rows of a sequence are side by side
    for (auto * plane : plane_tensors) {
        std::vector<uint8_t> kept(mtp_rows::N_KEPT * plane->nb[1]);
        ggml_backend_tensor_get(plane, kept.data(), rows.first_kept(from) * plane->nb[1], kept.size());
        ggml_backend_tensor_set(plane, kept.data(), rows.first_kept(to) * plane->nb[1], kept.size());
    }
}

void mtp_heads::discard(llama_seq_id seq, llama_pos pos, int32_t n) {
    if (own) {
        own->seq_rm(seq, pos, pos + n);
        own->seq_add(seq, pos + n, -1, -n);
    }
    for (auto & of_head : seen) {
        of_head[seq].discard(pos, n);
    }
    rows.discard(seq, pos, n);
}

void mtp_heads::write(llama_io_write_i & io, llama_seq_id seq) const {
    for (const auto & of_head : seen) {
        io.write(&of_head[seq], sizeof(mtp_seen));
    }
    const auto     kept   = rows.kept_rows(seq);
    const uint32_t n_kept = kept.size();
    io.write(&n_kept, sizeof(n_kept));
    for (const auto & [pos, row] : kept) {
        io.write(&pos, sizeof(pos));
        for (auto * plane : plane_tensors) {
            io.write_tensor(plane, row * plane->nb[1], plane->nb[1]);
        }
    }
}

void mtp_heads::read(llama_io_read_i & io, llama_seq_id seq) {
    rows.truncate(seq, 0);
    for (auto & of_head : seen) {
        io.read(&of_head[seq], sizeof(mtp_seen));
    }
    uint32_t n_kept;
    io.read(&n_kept, sizeof(n_kept));
    mtp_refuse_if(n_kept > mtp_rows::N_KEPT, "it has too many hidden states");
    for (uint32_t i = 0; i < n_kept; ++i) {
        llama_pos pos;
        io.read(&pos, sizeof(pos));
        const int32_t row = rows.put_trunk(seq, pos);
        for (auto * plane : plane_tensors) {
            io.read_tensor(plane, row * plane->nb[1], plane->nb[1]);
        }
    }
}
