// The C interface: sessions, what they say of themselves, and how they are set up. Like its other files (pymtp-passes.cpp,
// pymtp-sequences.cpp) it checks arguments, keeps exceptions and asserts on this side, and names errors.

#include "llama-model.h"
#include "mtp-architectures.h"
#include "mtp-memory.h"
#include "pymtp-session.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <vector>

static constexpr int64_t QK_MAX = 256; // a multiple of the block sizes of all types

static thread_local char    g_error[1024];
static std::atomic<int32_t> g_n_contexts{ 0 };

pymtp_status pymtp_fail(pymtp_status status, const char * format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(g_error, sizeof(g_error), format, args);
    va_end(args);
    return status;
}

pymtp_session::~pymtp_session() {
    if (mtp) {
        mtp->drop_slots();
    }
    if (ctx) {
        llama_free(ctx);
        --g_n_contexts;
    }
}

const char * pymtp_error_message(void) {
    return g_error;
}

int32_t pymtp_n_contexts(void) {
    return g_n_contexts;
}

const char * pymtp_draft_obstacle(const llama_model * model, const llama_model * assistant) {
    return pymtp_guard_or("it cannot be looked at", [&]() -> const char * {
        return assistant || llama_model_n_layer_nextn(model) > 0 ? mtp_obstacle(*model, assistant) : "it has none";
    });
}

int32_t pymtp_architecture(int32_t i, struct pymtp_architecture * architecture) {
    return pymtp_guard([&]() -> int32_t {
        const auto & all = mtp_architectures();
        if (i < 0 || i >= (int32_t) all.size()) {
            return pymtp_fail(PYMTP_INVALID, "%zu architectures can draft", all.size());
        }
        *architecture = { llm_arch_name(all[i].arch), all[i].n_heads_max, all[i].conditions };
        return PYMTP_OK;
    });
}

bool pymtp_device_reads_rows(ggml_backend_dev_t device, int32_t type) {
    return pymtp_guard_or(false, [&]() -> bool {
        if (!device || type < 0 || type >= GGML_TYPE_COUNT || ggml_blck_size((ggml_type) type) == 0) { // of the past
            return false;
        }
        ggml_context_ptr ctx{ ggml_init({ 4 * ggml_tensor_overhead(), nullptr, true }) };
        ggml_tensor *    table = ggml_new_tensor_2d(ctx.get(), (ggml_type) type, QK_MAX, 1);
        ggml_tensor *    ids   = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, 1);
        return ggml_backend_dev_supports_op(device, ggml_get_rows(ctx.get(), table, ids));
    });
}

static bool drafts(const pymtp_session_params & params) {
    return params.uses_heads && params.n_draft_max > 0;
}

// heads of the model that a session has to draft with
static int32_t n_heads_of(const llama_model & model, const pymtp_session_params & params) {
    return !drafts(params) ? 0 : params.assistant ? 1 : llama_model_n_layer_nextn(&model);
}

static int32_t check_params(const llama_model & model, const pymtp_session_params & params) {
    if (params.n_draft_max < 0 || params.n_draft_max > PYMTP_DRAFT_MAX) {
        return pymtp_fail(PYMTP_INVALID, "n_draft_max = %d is out of range: 0 to %d", params.n_draft_max,
                          +PYMTP_DRAFT_MAX);
    }
    if (params.head_context != PYMTP_HEAD_CONTEXT_TARGET && params.head_context != PYMTP_HEAD_CONTEXT_CHAINED) {
        return pymtp_fail(PYMTP_INVALID, "head_context = %d is unknown", params.head_context);
    }
    if (params.padding < PYMTP_PADDING_AUTO || params.padding > PYMTP_PADDING_ALWAYS) {
        return pymtp_fail(PYMTP_INVALID, "padding = %d is unknown", params.padding);
    }
    if (drafts(params) && n_heads_of(model, params) == 0) {
        return pymtp_fail(PYMTP_INVALID, "the model has no MTP head; use n_draft_max = 0");
    }
    const char * obstacle = drafts(params) ? mtp_obstacle(model, params.assistant) : nullptr;
    if (obstacle) {
        return pymtp_fail(PYMTP_INVALID, "llama.cpp cannot run the %s of %s (%s); use n_draft_max = 0",
                          params.assistant ? "assistant" : "MTP heads", llm_arch_name(model.arch), obstacle);
    }
    // a verify pass is one ubatch, and llama.cpp wants one row more where it keeps recurrent states
    const uint32_t n_rows_max = params.n_draft_max + 2;
    const uint32_t n_batch    = params.context->n_batch;
    const uint32_t n_ubatch   = params.context->n_ubatch;
    if (params.n_draft_max > 0 && std::min(n_ubatch > 0 ? n_ubatch : n_batch, n_batch) < n_rows_max) {
        return pymtp_fail(PYMTP_INVALID, "n_ubatch = %u and n_batch = %u are too small: %d drafts need %u", n_ubatch,
                          n_batch, params.n_draft_max, n_rows_max);
    }
    return PYMTP_OK;
}

static llama_context_params context_params(const pymtp_session_params & params) {
    auto cparams = *params.context;

    cparams.ctx_type = drafts(params) ? LLAMA_CONTEXT_TYPE_MTP_SHARED : LLAMA_CONTEXT_TYPE_DEFAULT;
    // recurrent states must be able to go back over a whole draft
    cparams.n_rs_seq = std::max(cparams.n_rs_seq, (uint32_t) params.n_draft_max);
    if (cparams.n_outputs_max == 0) {
        cparams.n_outputs_max = cparams.n_seq_max * (params.n_draft_max + 1);
    }
    return cparams;
}

static int32_t create_context(pymtp_session & session, llama_model & model, const llama_context_params & cparams) {
    const auto shortage = mtp_memory_check(model, cparams);
    if (shortage.device) {
        constexpr double GiB = 1024.0 * 1024.0 * 1024.0;
        return pymtp_fail(
            PYMTP_FAILED,
            "a context of %u tokens needs %.1f GiB on %s, which has %.1f GiB free: use a smaller context (-c)",
            cparams.n_ctx, shortage.needed / GiB, ggml_backend_dev_name(shortage.device), shortage.free / GiB);
    }
    session.ctx = llama_init_from_model(&model, cparams);
    if (!session.ctx) {
        return pymtp_fail(PYMTP_FAILED,
                          "llama.cpp could not create a context of %u tokens; use a smaller one (-c), or free memory",
                          cparams.n_ctx);
    }
    ++g_n_contexts;
    return PYMTP_OK;
}

// what a session knows of its context, and the engine
static void set_up(pymtp_session & session, const llama_model & model, const pymtp_session_params & params,
                   const llama_context_params & cparams) {
    session.n_ctx_seq     = params.n_ctx_seq > 0 ? params.n_ctx_seq : INT32_MAX;
    session.n_draft_max   = params.n_draft_max;
    session.n_heads       = std::min(n_heads_of(model, params), params.n_draft_max);
    session.n_outputs_max = cparams.n_outputs_max;

    const mtp_heads::params heads = {
        session.n_heads,
        session.n_heads > 1 && params.head_context == PYMTP_HEAD_CONTEXT_CHAINED,
        drafts(params) ? params.assistant : nullptr,
        { cparams.type_k, cparams.type_v, cparams.swa_full, cparams.ctx_type, nullptr },
    };
    session.mtp = &mtp_engine::attach(*session.ctx, { heads, cparams.n_seq_max * (params.n_draft_max + 1) });

    if (mtp_memory_has_snapshots(llama_get_memory(session.ctx))) {
        session.last_pass.assign(cparams.n_seq_max, -1);
    }
    if (params.n_draft_max > 0 && mtp_replay::is_needed(session.ctx)) {
        session.replay = std::make_unique<mtp_replay>(cparams.n_seq_max);
    }
    pymtp_choose_padding(session, params.padding);
}

int32_t pymtp_session_init(llama_model * model, const pymtp_session_params * params, pymtp_session ** out) {
    return pymtp_guard([&]() -> int32_t {
        *out = nullptr;

        int32_t status = check_params(*model, *params);
        if (status != PYMTP_OK) {
            return status;
        }
        auto       session = std::make_unique<pymtp_session>();
        const auto cparams = context_params(*params);

        status = create_context(*session, *model, cparams);
        if (status != PYMTP_OK) {
            return status;
        }
        set_up(*session, *model, *params, cparams);

        *out = session.release();
        return PYMTP_OK;
    });
}

void pymtp_session_free(pymtp_session * session) {
    delete session;
}

llama_context * pymtp_session_context(pymtp_session * session) {
    return session->ctx;
}

int32_t pymtp_session_memory(const pymtp_session * session) {
    if (session->n_heads == 0) {
        return PYMTP_MEMORY_NONE;
    }
    return session->mtp->heads.own_memory() ? PYMTP_MEMORY_OWN : PYMTP_MEMORY_SHARED;
}

const char * pymtp_session_memory_note(const pymtp_session * session) {
    if (session->mtp->heads.own_memory()) {
        return "the trunk's cache keeps more than K/V by position, so the heads have a cache of their own";
    }
    if (session->replay) {
        return "the model's recurrent states cannot go back, so rejected drafts cost another pass of the trunk";
    }
    return "";
}

int32_t pymtp_session_n_draft_max(const pymtp_session * session) {
    return session->n_draft_max;
}

int32_t pymtp_session_reduce(pymtp_session * session, int32_t n_max, int32_t also_on_host) {
    return pymtp_guard([&]() -> int32_t {
        if (n_max < 0) {
            return pymtp_fail(PYMTP_INVALID, "n_max = %d is negative", n_max);
        }
        session->mtp->reduce_logits(n_max, also_on_host != 0);
        return PYMTP_OK;
    });
}

int32_t pymtp_session_computes_apart(const pymtp_session * session) {
    return session->mtp->computes_apart();
}

int32_t pymtp_session_n_heads(const pymtp_session * session) {
    return session->n_heads;
}

int32_t pymtp_session_seen_end(const pymtp_session * session, int32_t seq, int32_t n_heads) {
    return pymtp_guard_or(-1, [&] {
        if (!session->has_seq(seq)) {
            pymtp_fail(PYMTP_INVALID, "sequence %d is not one of %u", seq, llama_n_seq_max(session->ctx));
            return -1;
        }
        return std::min(session->mtp->heads.seen_end(seq, n_heads), pymtp_seq_end(*session, seq));
    });
}

int32_t pymtp_session_output_type(const pymtp_session * session, int32_t head, int32_t * type, int64_t * row_bytes) {
    if (head < 0 || head >= session->n_heads) {
        return pymtp_fail(PYMTP_INVALID, "head %d is not one of %d", head, session->n_heads);
    }
    const ggml_tensor * matrix = session->mtp->vocab.output_matrix(head);

    *type      = matrix->type;
    *row_bytes = ggml_row_size(matrix->type, matrix->ne[0]);
    return PYMTP_OK;
}

// tokens that drafts are to be limited to: each of them once
static int32_t check_draft_tokens(const pymtp_session & session, int32_t n_tokens, const int32_t * token) {
    const int32_t     n_usable = session.mtp->n_logits(false);
    std::vector<bool> is_listed(n_usable, false);
    for (int32_t i = 0; i < n_tokens; ++i) {
        if (token[i] < 0 || token[i] >= n_usable) {
            return pymtp_fail(PYMTP_INVALID, "token %d is not in the vocabulary of %d", token[i], n_usable);
        }
        if (is_listed[token[i]]) {
            return pymtp_fail(PYMTP_INVALID, "token %d is listed twice", token[i]);
        }
        is_listed[token[i]] = true;
    }
    return PYMTP_OK;
}

int32_t pymtp_session_trim(pymtp_session * session, int32_t n_tokens, const int32_t * token,
                           const void * const * rows) {
    return pymtp_guard([&]() -> int32_t {
        const int32_t n_vocab = session->n_vocab();
        if (n_tokens < 1 || n_tokens > n_vocab) {
            return pymtp_fail(PYMTP_INVALID, "a draft vocabulary of %d tokens: 1 to %d are possible", n_tokens,
                              n_vocab);
        }
        if (session->n_heads == 0) {
            return pymtp_fail(PYMTP_INVALID, "the session does not draft");
        }
        if (!token) {
            forget_outputs(*session);
            // repacked matrices keep rows in groups
            session->mtp->limit_drafts(std::min(n_vocab, GGML_PAD(n_tokens, 32)));
            return PYMTP_OK;
        }
        const int32_t status = check_draft_tokens(*session, n_tokens, token);
        if (status != PYMTP_OK) {
            return status;
        }
        if (!rows) {
            return pymtp_fail(PYMTP_INVALID, "tokens without the rows of their matrices");
        }
        forget_outputs(*session);
        session->mtp->limit_drafts(std::vector<llama_token>(token, token + n_tokens),
                                   std::vector<const void *>(rows, rows + session->n_heads));
        return PYMTP_OK;
    });
}

int32_t pymtp_session_bar(pymtp_session * session, int32_t n_tokens, const int32_t * token) {
    return pymtp_guard([&]() -> int32_t {
        const int32_t n_vocab = session->n_vocab();
        if (n_tokens < 0) {
            return pymtp_fail(PYMTP_INVALID, "%d tokens", n_tokens);
        }
        for (int32_t i = 0; i < n_tokens; ++i) {
            if (token[i] < 0 || token[i] >= n_vocab) {
                return pymtp_fail(PYMTP_INVALID, "token %d is not in the vocabulary of %d", token[i], n_vocab);
            }
        }
        session->mtp->vocab.bar(std::vector<llama_token>(token, token + n_tokens));
        return PYMTP_OK;
    });
}

void pymtp_session_counters(const pymtp_session * session, pymtp_counters * counters) {
    *counters = session->mtp->counters;
    counters->t_trunk_us += session->t_trunk_us;
    counters->t_head_us += session->t_head_us;
}

int64_t pymtp_session_compute_bytes(const pymtp_session * session) {
    return session->mtp->compute_bytes();
}
