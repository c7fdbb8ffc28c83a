#pragma once

// What the threads of a pass do besides computing.

#include "ggml.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_cgraph;

//
// Cores that other processes keep busy. The threads of a pass meet after every node, so that the whole pass waits for the
// one whose core is taken: a pass that loses much time that way runs with fewer threads for a while.
//

// Whether a pass of the graph may run with fewer threads than it was given: if the engine has marked its nodes, whose
// results do not depend on the number of threads. llama.cpp's own do, where attention is split among threads.
bool mtp_may_leave_threads_out(const struct ggml_cgraph * graph);

// How many threads of n_threads the next pass of the calling thread uses.
int mtp_n_threads(int n_threads);

// Nanoseconds that the calling thread has not run on a core, up to a constant: it never sleeps in a pass, so that others
// took what it loses there. 0 where the system does not say.
int64_t mtp_off_core_ns(void);

// Notes a pass of the calling thread: its nanoseconds, and how many of these one of its threads lost at most.
void mtp_note_pass(int n_threads, int64_t pass_ns, int64_t lost_ns);

// Nanoseconds of a clock that never goes back.
int64_t mtp_now_ns(void);

// Waits for another thread's step: n_tries is how often the caller has looked for it in vain.
void mtp_wait(int n_tries);

//
// Threads that are bound to cores while they compute for a pool that asks for it. They belong to others as well: the first
// one is the caller's, and those of OpenMP compute for all pools of a process.
//

// Before the calling thread computes for a pool: whether it has to be bound to these cores, [GGML_MAX_N_THREADS]; not if
// it is already. Remembers what the thread had before. NULL: any cores, what it had before is given back.
bool mtp_bind_thread(const bool * mask);

// Gives the calling thread back what it had before.
void mtp_release_thread(void);

#ifdef __cplusplus
}
#endif
