#pragma once

// Schedulers whose graphs compute in the same memory, by turns: none needs what another one has left in it.
// ggml-backend.cpp has these, by a patch.

#include "ggml-backend.h"

// Whether the memory of a scheduler can be shared: some backends keep what they need of a graph's tensors with it.
GGML_API bool mtp_sched_can_share(ggml_backend_sched_t sched);

// Has a new scheduler, for the same devices, allocate where `owner` does, which has to outlive its graphs. If one of them
// needs more than there is, the memory is another one: graphs that were allocated before must not be computed any more.
GGML_API void mtp_sched_share(ggml_backend_sched_t sched, ggml_backend_sched_t owner);
