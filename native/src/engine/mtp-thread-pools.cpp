#include "mtp-thread-pools.h"

#include "ggml-backend.h"
#include "ggml-cpu.h"

#include <stdexcept>

// the backend may be a file of its own
template <typename T> static T * cpu_function(const char * name) {
    auto * device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto * res    = device ? ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name) : nullptr;
    if (!res) {
        throw std::runtime_error("the CPU backend has no pools of threads");
    }
    return (T *) res;
}

static ggml_threadpool * create(ggml_threadpool_params params) {
    params.paused = true; // threads of two pools would wait for work at the same time
    return cpu_function<decltype(ggml_threadpool_new)>("ggml_threadpool_new")(&params);
}

mtp_thread_pools::mtp_thread_pools(llama_context & ctx, const ggml_threadpool_params & rounds,
                                   const ggml_threadpool_params & prompts) :
    rounds(create(rounds), cpu_function<void(ggml_threadpool *)>("ggml_threadpool_free")),
    prompts(ggml_threadpool_params_match(&rounds, &prompts) ? nullptr : create(prompts), this->rounds.get_deleter()) {
    llama_attach_threadpool(&ctx, this->rounds.get(), this->prompts.get());
}
