#pragma once

// Cores that other processes keep busy. The threads of a pass meet after every node, so that the whole pass waits for the
// one whose core is taken: a pass that loses much time that way runs with fewer threads for a while.

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_cgraph;

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

#ifdef __cplusplus
}
#endif
