// The C interface: sessions, what they say of themselves, and how they are set up. Like its other files
// (pymtp-passes.cpp, pymtp-sequences.cpp) it checks arguments, keeps exceptions and asserts on this side, and names
// errors.

#include "ggml-cpu.h"
#include "llama-model.h"
#include "mtp-graph-check.h"
#include "mtp-memory.h"
#include "mtp-ubatch.h"
#include "pymtp-session.h"

#include <algorithm>
#include <cstring>
#include <vector>

static constexpr int64_t QK_MAX = 256; // a multiple of the block sizes of all types

pymtp_session::~pymtp_session() {
    if (mtp) {
        mtp->drop_graphs();
    }
    llama_free(ctx);
}

static constexpr int32_t N_FILES_MAX = 1 << 16; // parts have numbers of 16 bits

int32_t pymtp_model_load(int32_t n_files, const char * const * path, const llama_model_params * params,
                         llama_model ** model) {
    return pymtp_guard([&] {
        pymtp_need(model, "the model") = nullptr;
        pymtp_need(params, "the parameters");
        pymtp_need_array(path, n_files, N_FILES_MAX, "files");
        pymtp_refuse_if(n_files == 0 || std::count(path, path + n_files, nullptr) > 0, "no file to load");
        const pymtp_catch_asserts asserts;

        std::vector<const char *> paths(path, path + n_files);

        *model = n_files == 1 ? llama_model_load_from_file(path[0], *params) :
                                llama_model_load_from_splits(paths.data(), n_files, *params);
        pymtp_refuse_if(!*model, "%s", *asserts.failed() ? asserts.failed() : "llama.cpp cannot load it");
    });
}

const char * pymtp_draft_obstacle(const llama_model * model, const llama_model * assistant) {
    return pymtp_guard_or("it cannot be looked at", [&]() -> const char * {
        pymtp_need(model, "the model");
        return assistant || llama_model_n_layer_nextn(model) > 0 ? mtp_obstacle(*model, assistant) : "it has none";
    });
}

bool pymtp_model_goes_back(const llama_model * model) {
    return pymtp_guard_or(false, [&] { return mtp_memory_goes_back(pymtp_need(model, "the model")); });
}

const char * pymtp_heads_obstacle(const char * architecture, int32_t n_heads, int32_t has_lora_q, int32_t has_mla) {
    return pymtp_guard_or("it cannot be looked at", [&]() -> const char * {
        pymtp_need(architecture, "the architecture");
        return mtp_obstacle_metadata(architecture, n_heads, has_lora_q != 0, has_mla != 0);
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

int32_t pymtp_device_memory(ggml_backend_dev_t device, size_t * n_free, size_t * n_total) {
    return pymtp_guard([&] {
        pymtp_need(device, "the device");
        ggml_backend_dev_memory(device, &pymtp_need(n_free, "the free memory"), &pymtp_need(n_total, "the memory"));
    });
}

int32_t pymtp_device_buffer_type(ggml_backend_dev_t device, ggml_backend_buffer_type_t * buffer_type) {
    return pymtp_guard([&] {
        pymtp_need(device, "the device");
        pymtp_need(buffer_type, "the buffer type") = ggml_backend_dev_buffer_type(device);
    });
}

// what keeps GPUs from computing a row in the same way in every pass
static void need_invariant(const llama_model & model, const llama_context_params & cparams, const llama_context & ctx) {
    for (const auto & device : model.devices) {
        const char * name = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device.dev));
        pymtp_refuse_if(std::strcmp(name, "CUDA") != 0, "invariant (--invariant) is for CPUs and CUDA, not for %s",
                        name);
    }
    const bool has_states = llama_model_is_recurrent(&model) || llama_model_is_hybrid(&model);
    pymtp_refuse_if(has_states && !model.devices.empty(),
                    "invariant (--invariant) is not for models with recurrent states on GPUs");
    pymtp_refuse_if(!ctx.get_cparams().flash_attn || cparams.kv_unified || !cparams.swa_full,
                    "invariant (--invariant) needs flash attention, and a whole cache for each sequence");
    pymtp_refuse_if(cparams.n_ubatch > MTP_INVARIANT_ROWS_MAX,
                    "invariant (--invariant) needs passes of at most %u rows, not %u; lower -ub, -np or --draft-max",
                    MTP_INVARIANT_ROWS_MAX, cparams.n_ubatch);
}

static bool drafts(const pymtp_session_params & params) {
    return params.uses_heads && params.n_draft_max > 0;
}

// heads of the model that a session has to draft with
static int32_t n_heads_of(const llama_model & model, const pymtp_session_params & params) {
    return !drafts(params) ? 0 : params.assistant ? 1 : llama_model_n_layer_nextn(&model);
}

static void need_params(const llama_model & model, const pymtp_session_params & params) {
    pymtp_refuse_if(params.n_draft_max < 0 || params.n_draft_max > PYMTP_DRAFT_MAX,
                    "n_draft_max = %d is out of range: 0 to %d", params.n_draft_max, +PYMTP_DRAFT_MAX);
    pymtp_refuse_if(params.head_context != PYMTP_HEAD_CONTEXT_TARGET &&
                        params.head_context != PYMTP_HEAD_CONTEXT_CHAINED,
                    "head_context = %d is unknown", params.head_context);
    pymtp_refuse_if(params.padding < PYMTP_PADDING_AUTO || params.padding > PYMTP_PADDING_ALWAYS,
                    "padding = %d is unknown", params.padding);
    pymtp_refuse_if(params.n_draft_max > 0 && !mtp_memory_goes_back(model),
                    "llama.cpp keeps no snapshots of the states of %s models; use n_draft_max = 0",
                    llm_arch_name(model.arch));
    pymtp_refuse_if(drafts(params) && n_heads_of(model, params) == 0, "the model has no MTP head; use n_draft_max = 0");
    const char * obstacle = drafts(params) ? mtp_obstacle(model, params.assistant) : nullptr;
    pymtp_refuse_if(obstacle, "llama.cpp cannot run the %s of %s (%s); use n_draft_max = 0",
                    params.assistant ? "assistant" : "MTP heads", llm_arch_name(model.arch), obstacle);
    pymtp_refuse_if(!params.threads != !params.threads_batch, "threads of rounds and of prompts go together");
    for (const auto & [threads, n_threads] : { std::pair(params.threads, params.context->n_threads),
                                               std::pair(params.threads_batch, params.context->n_threads_batch) }) {
        if (threads && (threads->n_threads != n_threads || n_threads < 1 || n_threads > GGML_MAX_N_THREADS)) {
            pymtp_refuse("%d threads are not the %d of the context's parameters", threads->n_threads, n_threads);
        }
    }
    // a verify pass is one ubatch, and llama.cpp wants one row more where it keeps recurrent states
    const uint32_t n_rows_max = params.n_draft_max + 2;
    const uint32_t n_batch    = params.context->n_batch;
    const uint32_t n_ubatch   = params.context->n_ubatch;
    pymtp_refuse_if(params.n_draft_max > 0 && std::min(n_ubatch > 0 ? n_ubatch : n_batch, n_batch) < n_rows_max,
                    "n_ubatch = %u and n_batch = %u are too small: %d drafts need %u", n_ubatch, n_batch,
                    params.n_draft_max, n_rows_max);
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

// What the line of a log at a place says, without what it is about.
static std::string reason_in(const std::string & log, size_t at) {
    const size_t line  = log.rfind('\n', at) + 1;
    const size_t colon = log.rfind(": ", at);
    const size_t begin = colon == log.npos || colon < line ? line : colon + 2;
    return log.substr(begin, log.find('\n', at) - begin);
}

static void create_context(pymtp_session & session, llama_model & model, const llama_context_params & cparams) {
    mtp_memory_check_types(model, cparams);
    const pymtp_catch_asserts asserts;

    session.ctx = llama_init_from_model(&model, cparams);
    pymtp_fail_if(!session.ctx && *asserts.failed(), PYMTP_FAILED,
                  "the model's file is damaged, llama.cpp refuses it (%s); download it again", asserts.failed());
    const std::string log      = session.ctx && cparams.moe_cache_size == 0 ? "" : pymtp_log_take();
    const size_t      no_cache = log.find(session.ctx ? "MoE cache is disabled" : "MoE cache");
    if (no_cache != log.npos) {
        pymtp_refuse("moe_cache_mib (--moe-cache-mib) is of no use here: %s", reason_in(log, no_cache).c_str());
    }
    if (!session.ctx) {
        pymtp_check_lost(log.c_str());
        pymtp_fail(PYMTP_FAILED, "llama.cpp could not create a context of %u tokens%s%s; see -c, -ctk and -ctv",
                   cparams.n_ctx, log.empty() ? "" : ": ", reason_in(log, log.find_last_not_of('\n')).c_str());
    }
}

// the backend may be a file of its own
template <typename T> static T * cpu_function(const char * name) {
    auto * device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto * res    = device ? ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name) : nullptr;
    pymtp_fail_if(!res, PYMTP_FAILED, "the CPU backend has no pools of threads");
    return (T *) res;
}

static pymtp_threads create_threads(ggml_threadpool_params params) {
    params.paused = true; // threads of two pools would wait for work at the same time
    return { cpu_function<decltype(ggml_threadpool_new)>("ggml_threadpool_new")(&params),
             cpu_function<void(ggml_threadpool *)>("ggml_threadpool_free") };
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
    session.mtp = &mtp_engine::attach(*session.ctx, heads, cparams.n_seq_max * (params.n_draft_max + 1));

    session.mtp->is_invariant = params.is_invariant;

    if (mtp_memory_has_snapshots(llama_get_memory(session.ctx))) {
        session.last_pass.assign(cparams.n_seq_max, -1);
    }
    session.padder = std::make_unique<mtp_padder>(*session.ctx, *session.mtp, params.padding, params.n_draft_max,
                                                  session.n_outputs_max);
    if (params.threads) {
        session.threads = create_threads(*params.threads);
        if (!ggml_threadpool_params_match(params.threads, params.threads_batch)) {
            session.threads_batch = create_threads(*params.threads_batch);
        }
        llama_attach_threadpool(session.ctx, session.threads.get(), session.threads_batch.get());
    }
}

int32_t pymtp_session_init(llama_model * model, const pymtp_session_params * params, pymtp_session ** out) {
    return pymtp_guard([&] {
        pymtp_need(out, "the session") = nullptr;
        pymtp_need(model, "the model");
        pymtp_need(params, "the parameters");
        pymtp_need(params->context, "the parameters of the context");
        need_params(*model, *params);
        auto       session = std::make_unique<pymtp_session>();
        const auto cparams = context_params(*params);

        create_context(*session, *model, cparams);
        if (params->is_invariant) {
            need_invariant(*model, cparams, *session->ctx);
        }
        const pymtp_catch_asserts asserts;
        set_up(*session, *model, *params, cparams);
        pymtp_give(out, std::move(session));
    });
}

int32_t pymtp_session_describe(const pymtp_session * session, pymtp_session_info * info) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        pymtp_need(info, "the description") = {
            self.ctx,
            self.mtp->heads.own_memory() ? PYMTP_MEMORY_OWN :
            self.n_heads > 0             ? PYMTP_MEMORY_SHARED :
                                           PYMTP_MEMORY_NONE,
            self.n_heads,
            self.mtp->n_logits(false),
            self.mtp->is_async(),
            (int64_t) self.mtp->compute_bytes(),
        };
    });
}

int32_t pymtp_session_reduce(pymtp_session * session, int32_t n_max) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        pymtp_refuse_if(n_max < 0, "n_max = %d is negative", n_max);
        self.mtp->n_reduced = std::min(n_max, self.n_vocab());
    });
}

int32_t pymtp_session_seen_end(const pymtp_session * session, int32_t n_heads, int32_t n, const int32_t * seq,
                               int32_t * end) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        pymtp_need_array(seq, n, llama_n_seq_max(self.ctx), "sequences");
        pymtp_need_array(end, n, llama_n_seq_max(self.ctx), "positions");
        for (int32_t i = 0; i < n; ++i) {
            self.need_seq(seq[i]);
            end[i] = self.mtp->heads.seen_end(seq[i], self.padder->end(seq[i]), n_heads);
        }
    });
}

int32_t pymtp_session_n_computed(const pymtp_session * session, int32_t n_rows, int32_t of_step) {
    return pymtp_guard_or(-1, session, [&](pymtp_session & self) {
        pymtp_refuse_if(n_rows < 1, "%d rows of a pass: at least 1 is computed", n_rows);
        return (int32_t) self.padder->n_computed(n_rows, of_step != 0);
    });
}

// tokens that drafts are to be limited to: each of them once
static void need_draft_tokens(const pymtp_session & session, int32_t n_tokens, const int32_t * token) {
    const int32_t n_usable = session.mtp->n_logits(false);
    pymtp_need_tokens(token, n_tokens, n_usable);

    std::vector<bool> is_listed(n_usable, false);
    for (int32_t i = 0; i < n_tokens; ++i) {
        pymtp_refuse_if(is_listed[token[i]], "token %d is listed twice", token[i]);
        is_listed[token[i]] = true;
    }
}

// rows of all heads' output matrices, of a type or (-1) of their own
static std::vector<const void *> need_matrices(const pymtp_session & session, int32_t type, const void * const * rows,
                                               const int64_t * row_bytes) {
    pymtp_need_array(rows, session.n_heads, session.n_heads, "rows of the heads' matrices");
    pymtp_need_array(row_bytes, session.n_heads, session.n_heads, "lengths of rows");
    for (int32_t head = 0; head < session.n_heads; ++head) {
        pymtp_refuse_if(!rows[head], "no rows of the matrix of head %d (NULL)", head);
        const ggml_tensor & matrix = *session.mtp->vocab.output_matrix(head);
        const size_t        n      = ggml_row_size(type == -1 ? matrix.type : (ggml_type) type, matrix.ne[0]);
        pymtp_refuse_if(row_bytes[head] != (int64_t) n, "rows of %lld bytes for head %d, whose matrix has %zu in each",
                        (long long) row_bytes[head], head, n);
    }
    return std::vector<const void *>(rows, rows + session.n_heads); // not in braces: two pointers are a list, too
}

// a type that the output matrices of all heads can have
static void need_matrix_type(const pymtp_session & session, int32_t type) {
    const auto res = (ggml_type) type;
    pymtp_refuse_if(type < 0 || type >= GGML_TYPE_COUNT || !ggml_type_name(res) || ggml_blck_size(res) == 0,
                    "%d is no ggml_type", type);
    pymtp_refuse_if(!mtp_is_factor(res), "an output matrix cannot be of type %s", ggml_type_name(res));
    for (int32_t head = 0; head < session.n_heads; ++head) {
        const ggml_tensor * matrix = session.mtp->vocab.output_matrix(head);
        pymtp_refuse_if(matrix->ne[0] % ggml_blck_size(res) != 0,
                        "an output matrix with rows of %d numbers cannot be of type %s, which has blocks of %d (q8_0, "
                        "q5_0 and q4_0: 32)",
                        (int) matrix->ne[0], ggml_type_name(res), (int) ggml_blck_size(res));
    }
}

int32_t pymtp_session_limit_drafts(pymtp_session * session, int32_t n_tokens, const int32_t * token, int32_t type,
                                   const void * const * rows, const int64_t * row_bytes) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        const int32_t n_vocab = self.n_vocab();
        pymtp_refuse_if(n_tokens < 1 || n_tokens > n_vocab, "a draft vocabulary of %d tokens: 1 to %d are possible",
                        n_tokens, n_vocab);
        pymtp_refuse_if(self.n_heads == 0, "the session does not draft");
        if (!token) {
            forget_outputs(self);
            // repacked matrices keep rows in groups
            self.mtp->change_vocab().limit(std::min(n_vocab, GGML_PAD(n_tokens, 32)), {}, -1, {});
            return;
        }
        need_draft_tokens(self, n_tokens, token);
        if (type != -1) {
            need_matrix_type(self, type);
        }
        const auto of_heads = need_matrices(self, type, rows, row_bytes);
        forget_outputs(self);
        self.mtp->change_vocab().limit(n_tokens, { token, token + n_tokens }, type, of_heads);
    });
}

int32_t pymtp_session_replace_drafts(pymtp_session * session, int32_t n, const int32_t * row, const int32_t * token,
                                     const void * const * rows, const int64_t * row_bytes) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        const auto & vocab = self.mtp->vocab;
        pymtp_refuse_if(!vocab.is_listed(), "drafts are not limited to a list of tokens");
        pymtp_refuse_if(!vocab.has_own_types(), "the list's rows are not of the types of the heads' matrices");
        pymtp_need_array(row, n, vocab.size(), "rows");
        pymtp_refuse_if(std::any_of(row, row + n, [&](int32_t at) { return at < 0 || at >= vocab.size(); }),
                        "a row that a list of %d tokens has not", vocab.size());
        pymtp_need_array(token, n, vocab.size(), "tokens");
        pymtp_need_tokens(token, n, self.mtp->n_logits(false));
        const auto of_heads = need_matrices(self, -1, rows, row_bytes);
        forget_outputs(self);
        self.mtp->change_vocab().replace({ row, row + n }, { token, token + n }, of_heads);
    });
}

int32_t pymtp_session_ban_tokens(pymtp_session * session, int32_t n_tokens, const int32_t * token) {
    return pymtp_guard(session, [&](pymtp_session & self) {
        pymtp_need_array(token, n_tokens, PYMTP_VOCAB_MAX, "tokens");
        pymtp_need_tokens(token, n_tokens, self.n_vocab());
        self.mtp->vocab.ban(std::vector<llama_token>(token, token + n_tokens));
    });
}

int32_t pymtp_session_counters(const pymtp_session * session, pymtp_counters * counters) {
    return pymtp_guard(session,
                       [&](pymtp_session & self) { pymtp_need(counters, "the counters") = self.mtp->counters; });
}
