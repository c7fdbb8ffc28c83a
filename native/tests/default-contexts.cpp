// Prints a hash of every row that llama.cpp's own contexts compute, in a fixed script: built against an unpatched
// llama.cpp and against the patched one, it must print the same. Knows llama.cpp's functions only, nothing of pymtp.
//
//   default-contexts MODEL.gguf...

#include "llama-ext.h"
#include "llama.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

static constexpr int32_t N_SEQ   = 3;
static constexpr int32_t N_DRAFT = 3;

struct row {
    llama_token  token;
    llama_pos    pos;
    llama_seq_id seq;
};

struct context {
    llama_context * ctx;
    std::string     name; // what a line begins with

    context(llama_model * model, llama_context_params params, std::string name) :
        ctx(llama_init_from_model(model, params)), name(std::move(name)) {
        if (!ctx) {
            fprintf(stderr, "%s: no context\n", this->name.c_str());
            exit(1);
        }
    }

    context(const context &) = delete;

    ~context() { llama_free(ctx); }

    llama_memory_t memory() const { return llama_get_memory(ctx); }

    int32_t n_vocab() const { return llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))); }

    llama_pos next(llama_seq_id seq) const { return llama_memory_seq_pos_max(memory(), seq) + 1; }
};

// Models whose recurrent states go back only in the patched llama.cpp, which else takes no notice of n_rs_seq.
static bool ignores_rs_seq(const llama_model * model) {
    char architecture[64] = "";
    llama_model_meta_val_str(model, "general.architecture", architecture, sizeof(architecture));
    return std::string(architecture) == "qwen3next";
}

static uint64_t hash_row(const float * data, int32_t n) {
    uint64_t     hash  = 14695981039346656037u; // FNV-1a
    const auto * bytes = reinterpret_cast<const uint8_t *>(data);
    for (size_t i = 0; i < n * sizeof(float); ++i) {
        hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    return hash;
}

static void print_row(const context & c, const char * what, const row & r, const float * data, int32_t n) {
    printf("%s %s seq %d pos %d %016llx\n", c.name.c_str(), what, r.seq, r.pos, (unsigned long long) hash_row(data, n));
}

// Decodes the rows. hidden: [rows.size(), n_embd] for a context of the heads, which reads them beside the tokens.
static void decode(const context & c, const std::vector<row> & rows, const std::vector<float> & hidden = {}) {
    std::vector<llama_token>    token;
    std::vector<llama_pos>      pos;
    std::vector<int32_t>        n_seq_id(rows.size(), 1);
    std::vector<llama_seq_id>   seq;
    std::vector<llama_seq_id *> seq_id;
    std::vector<int8_t>         logits(rows.size(), 1);

    for (const auto & r : rows) {
        token.push_back(r.token);
        pos.push_back(r.pos);
        seq.push_back(r.seq);
    }
    for (auto & s : seq) {
        seq_id.push_back(&s);
    }

    const llama_batch batch = {
        (int32_t) rows.size(),
        token.data(),
        hidden.empty() ? nullptr : const_cast<float *>(hidden.data()),
        pos.data(),
        n_seq_id.data(),
        seq_id.data(),
        logits.data(),
    };

    const int32_t status = llama_decode(c.ctx, batch);
    if (status != 0) {
        printf("%s decode: %d\n", c.name.c_str(), status);
        return;
    }
    for (size_t i = 0; i < rows.size(); ++i) {
        print_row(c, "logits", rows[i], llama_get_logits_ith(c.ctx, i), c.n_vocab());
    }
}

// any tokens, the same in every run
static std::vector<row> more_rows(const context & c, llama_seq_id seq, int32_t n) {
    std::vector<row> rows;
    for (int32_t i = 0; i < n; ++i) {
        const llama_pos pos = c.next(seq) + i;
        rows.push_back({ (pos * 7919 + seq * 104729 + 17) % c.n_vocab(), pos, seq });
    }
    return rows;
}

static void remove_from(const context & c, llama_seq_id seq, llama_pos pos) {
    // recurrent states may not be able to
    if (!llama_memory_seq_rm(c.memory(), seq, pos, -1)) {
        printf("%s seq_rm %d: refused\n", c.name.c_str(), seq);
    }
}

// a context of the default type: prompts, single steps, small passes, changes of the memory, several sequences
static void run_default(llama_model * model, const llama_context_params & params, const std::string & name) {
    const context c(model, params, name + " default");

    decode(c, more_rows(c, 0, 300)); // several ubatches; attention is over more than 512 cells with what follows
    for (int32_t i = 0; i < 4; ++i) {
        decode(c, more_rows(c, 0, 1));
    }
    for (const int32_t n : { 2, 3, 4, 5, 7, 8, 16, 33, 63, 64, 65 }) {
        decode(c, more_rows(c, 0, n));
    }
    remove_from(c, 0, c.next(0) - 3);
    decode(c, more_rows(c, 0, 2));

    decode(c, more_rows(c, 1, 40));
    decode(c, more_rows(c, 2, 21));
    for (const int32_t n : { 2, 1 }) {
        std::vector<row> rows;
        for (llama_seq_id seq = 0; seq < N_SEQ; ++seq) {
            for (const auto & r : more_rows(c, seq, n)) {
                rows.push_back(r);
            }
        }
        decode(c, rows);
    }

    remove_from(c, 1, 0);
    llama_memory_seq_cp(c.memory(), 2, 1, -1, -1);
    decode(c, more_rows(c, 1, 3));
    decode(c, more_rows(c, 2, 1));
    llama_memory_seq_keep(c.memory(), 1);
    decode(c, more_rows(c, 1, 4));

    llama_memory_clear(c.memory(), true);
    decode(c, more_rows(c, 0, 5));
}

// llama.cpp's own drafting, as its common/speculative.cpp does it: a second context of type MTP beside the target's,
// hidden states through the host
struct two_contexts {
    context target;
    context draft;
    int32_t n_heads;
    int32_t n_embd;

    std::vector<std::vector<float>> hidden; // [N_SEQ][(position + 1) * n_embd]: after the position; zeros before 0

    two_contexts(llama_model * model, llama_context_params params, const std::string & name) :
        target(model, params, name + " target"), draft(model, draft_params(params, target.ctx), name + " draft"),
        n_heads(llama_model_n_layer_nextn(model)), n_embd(llama_model_n_embd_out(model)),
        hidden(N_SEQ, std::vector<float>(n_embd, 0.0f)) {
        llama_set_embeddings_nextn(target.ctx, true, false);
        llama_set_embeddings_nextn(draft.ctx, true, true);
    }

    static llama_context_params draft_params(llama_context_params params, llama_context * target) {
        params.ctx_type  = LLAMA_CONTEXT_TYPE_MTP;
        params.ctx_other = target;
        params.n_rs_seq  = 0;
        return params;
    }

    void run_target(const std::vector<row> & rows) {
        decode(target, rows);
        for (size_t i = 0; i < rows.size(); ++i) {
            const float * h = llama_get_embeddings_nextn_ith(target.ctx, i);
            print_row(target, "hidden", rows[i], h, n_embd);

            auto & kept = hidden[rows[i].seq];
            kept.resize((rows[i].pos + 1) * n_embd);
            kept.insert(kept.end(), h, h + n_embd);
        }
        for (int32_t head = 0; head < n_heads; ++head) {
            std::vector<float> read;
            for (const auto & r : rows) {
                const auto h = hidden[r.seq].begin() + r.pos * n_embd;
                read.insert(read.end(), h, h + n_embd);
            }
            if (head > 0) {
                for (const auto & r : rows) {
                    llama_memory_seq_rm(draft.memory(), r.seq, r.pos, -1);
                }
            }
            llama_set_nextn_layer_offset(draft.ctx, head);
            decode(draft, rows, read);
        }
        llama_set_nextn_layer_offset(draft.ctx, 0);
    }

    // the drafted tokens are any: what counts is what the head computes
    void run_draft(llama_seq_id seq) {
        const bool      chained = n_heads > 1;
        const llama_pos begin   = target.next(seq);

        const auto         rows = more_rows(target, seq, N_DRAFT);
        std::vector<float> read(hidden[seq].begin() + begin * n_embd, hidden[seq].begin() + (begin + 1) * n_embd);

        for (int32_t step = 0; step < N_DRAFT; ++step) {
            // chained heads see all rows of the draft, each head on its own
            const int32_t first = chained ? 0 : step;
            llama_memory_seq_rm(draft.memory(), seq, begin + first, -1);
            llama_set_nextn_layer_offset(draft.ctx, chained ? step % n_heads : 0);
            decode(draft, { rows.begin() + first, rows.begin() + step + 1 },
                   { read.begin() + first * n_embd, read.end() });

            const float * h = llama_get_embeddings_nextn_ith(draft.ctx, step - first);
            print_row(draft, "hidden", rows[step], h, n_embd);
            read.insert(read.end(), h, h + n_embd);
        }
        llama_set_nextn_layer_offset(draft.ctx, 0);
        llama_memory_seq_rm(draft.memory(), seq, begin, -1);
    }

    void truncate(llama_seq_id seq, llama_pos pos) {
        remove_from(target, seq, pos);
        llama_memory_seq_rm(draft.memory(), seq, target.next(seq), -1);
        hidden[seq].resize((target.next(seq) + 1) * n_embd);
    }

    void run() {
        run_target(more_rows(target, 0, 300));
        run_target(more_rows(target, 1, 30));
        for (int32_t round = 0; round < 4; ++round) {
            for (llama_seq_id seq = 0; seq < 2; ++seq) {
                run_draft(seq);
                run_target(more_rows(target, seq, N_DRAFT + 1));
                truncate(seq, target.next(seq) - round % (N_DRAFT + 1));
            }
        }
        auto rows = more_rows(target, 0, 2);
        for (const auto & r : more_rows(target, 1, 2)) {
            rows.push_back(r);
        }
        run_target(rows);
    }
};

int main(int argc, char ** argv) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();

    for (int i = 1; i < argc; ++i) {
        // the CPU, whatever else there is
        ggml_backend_dev_t no_devices[] = { nullptr };

        auto model_params     = llama_model_default_params();
        model_params.load_mtp = true;
        model_params.devices  = no_devices;

        llama_model * model = llama_model_load_from_file(argv[i], model_params);
        if (!model) {
            fprintf(stderr, "%s: not loaded\n", argv[i]);
            return 1;
        }

        for (const bool flash : { false, true }) {
            for (const bool unified : { false, true }) {
                auto params            = llama_context_default_params();
                params.n_ctx           = 1024 * N_SEQ;
                params.n_batch         = 512;
                params.n_ubatch        = 80;
                params.n_seq_max       = N_SEQ;
                params.n_rs_seq        = ignores_rs_seq(model) ? 0 : N_DRAFT + 1;
                params.n_threads       = 2;
                params.n_threads_batch = 2;
                params.kv_unified      = unified;
                params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;

                const std::string name = std::string(flash ? "flash" : "plain") + (unified ? " unified" : " streams");

                run_default(model, params, name);
                if (llama_model_n_layer_nextn(model) > 0) {
                    two_contexts(model, params, name).run();
                }
            }
        }
        llama_model_free(model);
    }
    llama_backend_free();
}
