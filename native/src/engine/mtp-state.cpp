// What a context remembers, as bytes: the trunk's memory and the heads', and the hidden states that the heads go on
// from. Copies of sequences and shifts of positions are here too, which change all three alike.

#include "llama-io.h"
#include "llama-model.h"
#include "mtp-engine.h"
#include "mtp-memory.h"

#include <cstring>
#include <stdexcept>

namespace {

struct mtp_state_header {
    uint32_t magic     = 0x50544d50; // "PMTP"
    uint32_t version   = 2;
    uint32_t n_seq_max = 0;
    uint32_t n_planes  = 0;
    uint32_t n_embd    = 0;
    uint32_t own       = 0; // the heads have a cache of their own
    uint32_t n_heads   = 0;

    bool operator==(const mtp_state_header & other) const { return memcmp(this, &other, sizeof(*this)) == 0; }
};

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

    template <typename T> void write_value(const T & value) { write(&value, sizeof(value)); }

    std::vector<uint8_t> data;
};

class mtp_state_reader : public llama_io_read_i {
  public:
    mtp_state_reader(const uint8_t * data, size_t size) : data(data), size(size) {}

    void read(void * dst, size_t n) override { memcpy(dst, take(n), n); }

    void read_tensor(ggml_tensor * tensor, size_t offset, size_t n) override {
        ggml_backend_tensor_set(tensor, take(n), offset, n);
    }

    size_t n_bytes() override { return n_read; }

    template <typename T> T read_value() {
        T value;
        read(&value, sizeof(value));
        return value;
    }

    void expect_end() const {
        if (n_read != size) {
            throw std::runtime_error("it goes on behind its end");
        }
    }

  private:
    const uint8_t * data;
    size_t          size;
    size_t          n_read = 0;

    const uint8_t * take(size_t n) {
        if (n > size - n_read) {
            throw std::runtime_error("it ends early");
        }
        n_read += n;
        return data + n_read - n;
    }
};

} // namespace

static mtp_state_header mtp_state_header_of(const llama_context & ctx, size_t n_planes, bool own, int32_t n_heads) {
    mtp_state_header header;
    header.n_seq_max = llama_n_seq_max(&ctx);
    header.n_planes  = n_planes;
    header.n_embd    = ctx.get_model().hparams.n_embd_out();
    header.own       = own;
    header.n_heads   = n_heads;
    return header;
}

std::vector<uint8_t> mtp_engine::save_state() {
    ctx.synchronize();
    release_drafts();

    const auto header = mtp_state_header_of(ctx, planes.size(), own_memory != nullptr, n_heads);

    mtp_state_writer io;
    io.write_value(header);
    ctx.memory->state_write(io);
    if (own_memory) {
        own_memory->state_write(io);
    }

    for (uint32_t seq = 0; seq < header.n_seq_max; ++seq) {
        const auto kept = hidden_rows.kept_rows(seq);
        for (const auto & of_head : seen) {
            io.write_value(of_head[seq]);
        }
        io.write_value((uint32_t) kept.size());
        for (const auto & [pos, row] : kept) {
            io.write_value(pos);
            for (auto * plane : planes) {
                io.write_tensor(plane, row * plane->nb[1], plane->nb[1]);
                counters.n_hidden_bytes += plane->nb[1];
            }
        }
    }
    return std::move(io.data);
}

void mtp_engine::restore_state(const uint8_t * data, size_t size) {
    ctx.synchronize();
    mtp_state_reader io(data, size);

    const auto header = mtp_state_header_of(ctx, planes.size(), own_memory != nullptr, n_heads);

    if (!(io.read_value<mtp_state_header>() == header)) {
        throw std::runtime_error("it is of a session of another kind");
    }

    ctx.memory->state_read(io);
    if (own_memory) {
        own_memory->state_read(io);
    }

    for (uint32_t seq = 0; seq < header.n_seq_max; ++seq) {
        hidden_rows.truncate(seq, 0);
        for (auto & of_head : seen) {
            of_head[seq] = io.read_value<mtp_seen>();
        }
        const uint32_t n_kept = io.read_value<uint32_t>();
        if (n_kept > mtp_rows::N_KEPT) {
            throw std::runtime_error("it has too many hidden states");
        }
        for (uint32_t i = 0; i < n_kept; ++i) {
            const int32_t row = hidden_rows.put_trunk(seq, io.read_value<llama_pos>());
            for (auto * plane : planes) {
                io.read_tensor(plane, row * plane->nb[1], plane->nb[1]);
                counters.n_hidden_bytes += plane->nb[1];
            }
        }
    }
    io.expect_end();
}

// what heads have written ahead of the trunk
void mtp_engine::release_drafts() {
    hidden_rows.drop_heads();
    mtp_memory_release(ctx.memory.get());
    for (uint32_t seq = 0; own_memory && seq < ctx.cparams.n_seq_max; ++seq) {
        own_memory->seq_rm(seq, ctx.memory->seq_pos_max(seq) + 1, -1);
    }
}

void mtp_engine::copy(llama_seq_id from, llama_seq_id to) {
    ctx.synchronize();
    release_drafts();

    if (mtp_memory_has_snapshots(ctx.memory.get())) {
        // cells that sequences share cannot go back one without the other
        mtp_state_writer written;
        ctx.memory->state_write(written, from);
        mtp_state_reader io(written.data.data(), written.data.size());
        ctx.memory->state_read(io, to);
    } else {
        ctx.memory->seq_cp(from, to, -1, -1);
        ctx.memory_update(false);
    }
    if (own_memory) {
        own_memory->seq_cp(from, to, -1, -1);
        update_own_memory();
    }

    for (auto & of_head : seen) {
        of_head[to] = of_head[from];
    }
    hidden_rows.copy(from, to);

    // the kept rows of a sequence lie side by side
    for (auto * plane : planes) {
        ggml_init_params params = { 2 * ggml_tensor_overhead(), nullptr, true };
        ggml_context_ptr views(ggml_init(params));

        const auto view = [&](llama_seq_id seq) {
            auto * rows = ggml_view_2d(views.get(), plane, plane->ne[0], mtp_rows::N_KEPT, plane->nb[1],
                                       hidden_rows.first_kept(seq) * plane->nb[1]);
            ggml_backend_view_init(rows);
            return rows;
        };
        ggml_backend_tensor_copy(view(from), view(to));
    }
}

void mtp_engine::discard(llama_seq_id seq, llama_pos pos, int32_t n) {
    const auto shift = [&](llama_memory_i & memory) {
        memory.seq_rm(seq, pos, pos + n);
        memory.seq_add(seq, pos + n, -1, -n);
    };

    ctx.synchronize();
    release_drafts();
    shift(*ctx.memory);
    ctx.memory_update(false);
    if (own_memory) {
        shift(*own_memory);
        update_own_memory();
    }

    for (auto & of_head : seen) {
        of_head[seq].discard(pos, n);
    }
    hidden_rows.discard(seq, pos, n);
}

void mtp_engine::update_own_memory() {
    const auto mctx = own_memory->init_update(&ctx, false);
    if (mctx->get_status() == LLAMA_MEMORY_STATUS_SUCCESS) {
        select_home();
        mctx->apply();
        // the shift has used the scheduler
        ctx.sched_need_reserve = true;
        ctx.sched_reserve();
    }
}
