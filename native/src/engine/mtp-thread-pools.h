#pragma once

// Threads of the CPU with cores and a priority of their own. Owns ggml's pools; knows no passes.

#include "llama.h"

#include <memory>

class mtp_thread_pools {
  public:
    // The context computes with them from now on; they outlive it. Throws if there is no CPU backend.
    mtp_thread_pools(llama_context & ctx, const ggml_threadpool_params & rounds,
                     const ggml_threadpool_params & prompts);

  private:
    using pool = std::unique_ptr<ggml_threadpool, void (*)(ggml_threadpool *)>;

    pool rounds;
    pool prompts; // nullptr if they are alike
};
