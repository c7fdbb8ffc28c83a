#pragma once

// Which kinds of llama.cpp memory can host the MTP layers beside the trunk's, and how a head's pass gets its cells.

#include "ggml-backend.h"
#include "llama-memory.h"

// n_rs_seq: positions that recurrent states, if there are any, can go back
bool mtp_memory_can_share(llama_memory_i * memory, uint32_t n_rs_seq);

// Cells for a head's pass; status FAILED_PREPARE if the cache is full.
llama_memory_context_ptr mtp_memory_place(llama_memory_i * memory, const llama_ubatch & ubatch);

// A device whose free memory cannot hold its part of the K/V cache; device is nullptr if all can. An estimate: of the
// compute buffers only the attention mask is counted.
struct mtp_memory_shortage {
    ggml_backend_dev_t device;
    size_t             needed; // bytes
    size_t             free;   // bytes
};

mtp_memory_shortage mtp_memory_check(const llama_model & model, const llama_context_params & params);

// While it lives, applying a placed ubatch leaves the cells alone.
class mtp_memory_placed {
  public:
    explicit mtp_memory_placed(llama_memory_i * memory);
    ~mtp_memory_placed();

  private:
    llama_memory_i * memory;
};
