#pragma once

// Threads that are bound to cores, or have another priority, while they compute for a pool that asks for it. They belong
// to others as well: the first one is the caller's, and those of OpenMP compute for all pools of a process.

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Before the calling thread computes for a pool: whether it has to be bound to these cores, [GGML_MAX_N_THREADS], and get
// this ggml_sched_priority; not if it is already. mask may be NULL: any. Remembers what the thread had before, or gives it
// back where the pool asks for nothing.
bool mtp_bind_thread(const bool * mask, int32_t prio);

// Gives the calling thread back what it had before.
void mtp_release_thread(void);

#ifdef __cplusplus
}
#endif
