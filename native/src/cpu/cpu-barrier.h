#pragma once

// A part of ggml-cpu.c, which includes it after its atomics: where the threads of the engine's graphs wait for each other,
// offering their cores to others meanwhile, and what they lose of them. Other graphs have llama.cpp's own barrier.

#include "cpu-threads.h"

// n_arrived: threads at this barrier; n_passed: barriers that all have passed
static void mtp_barrier(atomic_int * n_arrived, atomic_int * n_passed, int n_threads) {
    const int n = atomic_load_explicit(n_passed, memory_order_relaxed);
    if (atomic_fetch_add_explicit(n_arrived, 1, memory_order_seq_cst) == n_threads - 1) {
        atomic_store_explicit(n_arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(n_passed, 1, memory_order_seq_cst);
        return;
    }
    for (int n_tries = 0; atomic_load_explicit(n_passed, memory_order_relaxed) == n; n_tries++) {
        mtp_wait(n_tries);
    }
    // what the others have written is seen after it; a fence would do, which sanitizers do not know
    atomic_fetch_add_explicit(n_passed, 0, memory_order_seq_cst);
}

// most_ns: what one thread of the pass has lost at most
static void mtp_note_lost(atomic_llong * most_ns, long long lost_ns) {
    long long most = atomic_load_explicit(most_ns, memory_order_relaxed);
    while (lost_ns > most && !atomic_compare_exchange_weak(most_ns, &most, lost_ns)) {
    }
}
