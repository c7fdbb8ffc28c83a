// What a context remembers, as bytes: the trunk's memory and the heads', and the hidden states that the heads continue
// from. Copies of sequences and shifts of positions are here too, which change all three alike.

#include "llama-io.h"
#include "llama-model.h"
#include "mtp-engine.h"
#include "mtp-memory.h"
#include "mtp-refuse.h"

#include <array>
#include <cstring>

namespace {

// What has to be the same in the session that reads a state. A single sequence fits into a session of any number.
using mtp_state_header = std::array<uint32_t, 5>;

class mtp_state_writer : public llama_io_write_i {
  public:
    void write(const void * src, size_t size) override {
        data.insert(data.end(), (const uint8_t *) src, (const uint8_t *) src + size);
    }

    void write_tensor(ggml_tensor * tensor, size_t offset, size_t size) override {
        data.resize(data.size() + size);
        ggml_backend_tensor_get(tensor, data.data() + data.size() - size, offset, size);
    }

    size_t n_bytes() override { return data.size(); }

    std::vector<uint8_t> data;
};

class mtp_state_reader : public llama_io_read_i {
  public:
    mtp_state_reader(const uint8_t * data, size_t size, mtp_origin origin) : data(data), size(size), origin(origin) {}

    void read(void * dst, size_t n) override { memcpy(dst, take(n), n); }

    // Without flash attention, a value that is no number reaches every sequence that shares the cache: 0 * NaN is NaN.
    void read_tensor(ggml_tensor * tensor, size_t offset, size_t n) override {
        const uint8_t * values = take(n);
        mtp_refuse_if(origin == MTP_ORIGIN_OUTSIDE && !ggml_validate_row_data(tensor->type, values, n),
                      "it holds values that are not finite");
        ggml_backend_tensor_set(tensor, values, offset, n);
    }

    size_t n_bytes() override { return n_read; }

    void expect_end() const { mtp_refuse_if(n_read != size, "it continues after its end"); }

  private:
    const uint8_t * data;
    size_t          size;
    mtp_origin      origin;
    size_t          n_read = 0;

    const uint8_t * take(size_t n) {
        mtp_refuse_if(n > size - n_read, "it ends early");
        n_read += n;
        return data + n_read - n;
    }
};

} // namespace

static mtp_state_header mtp_state_header_of(const llama_context & ctx, const mtp_heads & heads, llama_seq_id seq) {
    return { seq < 0 ? llama_n_seq_max(&ctx) : 0, (uint32_t) heads.planes().size(),
             ctx.get_model().hparams.n_embd_out(), heads.own_memory() != nullptr, (uint32_t) heads.n_heads };
}

// Calls a function with each sequence that a state is about: one, or all for -1.
template <typename F> static void mtp_state_for_each(const llama_context & ctx, llama_seq_id seq, F && function) {
    const llama_seq_id end = seq < 0 ? llama_n_seq_max(&ctx) : seq + 1;
    for (llama_seq_id each = std::max(seq, 0); each < end; ++each) {
        function(each);
    }
}

static void mtp_write_images(llama_io_write_i & io, const mtp_image_spans & images) {
    const uint32_t n = images.spans.size();
    io.write(&n, sizeof(n));
    io.write(images.spans.data(), n * sizeof(mtp_image_spans::span));
}

static void mtp_read_images(llama_io_read_i & io, mtp_image_spans & images) {
    images.spans.clear();
    uint32_t n;
    io.read(&n, sizeof(n));
    llama_pos end = 0;
    for (uint32_t i = 0; i < n; ++i) {
        mtp_image_spans::span span;
        io.read(&span, sizeof(span));
        mtp_refuse_if(span.begin < end || span.n_pos < 1 || span.n_pos > INT32_MAX - span.begin,
                      "its images are where none can be");
        end = span.begin + span.n_pos;
        images.spans.push_back(span);
    }
}

std::vector<uint8_t> mtp_engine::save_state(llama_seq_id seq) {
    ctx.synchronize();
    heads.release_drafts();

    const auto header = mtp_state_header_of(ctx, heads, seq);

    mtp_state_writer io;
    io.write(&header, sizeof(header));
    ctx.memory->state_write(io, seq);
    if (heads.own_memory()) {
        heads.own_memory()->state_write(io, seq);
    }
    mtp_state_for_each(ctx, seq, [&](llama_seq_id each) {
        mtp_write_images(io, images[each]);
        heads.write(io, each);
    });
    return std::move(io.data);
}

void mtp_engine::restore_state(const uint8_t * data, size_t size, mtp_origin origin, llama_seq_id seq) {
    ctx.synchronize();
    mtp_state_reader io(data, size, origin);

    mtp_state_header header;
    io.read(&header, sizeof(header));
    mtp_refuse_if(header != mtp_state_header_of(ctx, heads, seq), "it is of a session of another kind");

    ctx.memory->state_read(io, seq);
    if (heads.own_memory()) {
        heads.own_memory()->state_read(io, seq);
    }
    mtp_state_for_each(ctx, seq, [&](llama_seq_id each) {
        mtp_read_images(io, images[each]);
        heads.read(io, each);
    });
    io.expect_end();
}

void mtp_engine::copy(llama_seq_id from, llama_seq_id to) {
    ctx.synchronize();
    heads.release_drafts();

    if (mtp_memory_has_snapshots(ctx.memory.get())) {
        // cells that sequences share cannot go back one without the other
        mtp_state_writer written;
        ctx.memory->state_write(written, from);
        mtp_state_reader io(written.data.data(), written.data.size(), MTP_ORIGIN_CONTEXT);
        ctx.memory->state_read(io, to);
    } else {
        ctx.memory->seq_cp(from, to, -1, -1);
        ctx.memory_update(false);
    }
    heads.copy(from, to);
    images[to] = images[from];
    update_own_memory();
}

void mtp_engine::discard(llama_seq_id seq, llama_pos pos, int32_t n) {
    ctx.synchronize();
    heads.release_drafts();
    ctx.memory->seq_rm(seq, pos, pos + n);
    ctx.memory->seq_add(seq, pos + n, -1, -n);
    ctx.memory_update(false);
    heads.discard(seq, pos, n);
    update_own_memory();
    mtp_refuse_if(mtp_memory_has_shift(ctx.memory.get()) || mtp_memory_has_shift(heads.own_memory()),
                  "the memory for moving the keys of the cache has run out");
}

std::string mtp_engine::shift_obstacle() {
    const auto res = mtp_memory_shift_obstacle(ctx.memory.get(), ctx, ctx.backend_ptrs);
    return res.empty() ? mtp_memory_shift_obstacle(heads.own_memory(), ctx, ctx.backend_ptrs) : res;
}

void mtp_engine::update_own_memory() {
    if (!heads.own_memory()) {
        return;
    }
    const auto mctx = heads.own_memory()->init_update(&ctx, false);
    if (mctx->get_status() == LLAMA_MEMORY_STATUS_SUCCESS) {
        select_home();
        mctx->apply();
        // the shift has used the scheduler
        ctx.sched_need_reserve = true;
        ctx.sched_reserve();
    }
}
