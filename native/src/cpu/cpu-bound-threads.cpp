#include "cpu-bound-threads.h"

#include "ggml.h"

#include <algorithm>
#include <array>

#if defined(__linux__) && !defined(__ANDROID__)
#    include <pthread.h>
#    include <sched.h>
#endif

using cores = std::array<bool, GGML_MAX_N_THREADS>;

// What a thread is bound to.
struct binding {
    bool    is_bound = false;
    cores   mask     = {};
    int32_t prio     = GGML_SCHED_PRIO_NORMAL;

    // what it had before; elsewhere than on Linux a thread stays bound
#if defined(__linux__) && !defined(__ANDROID__)
    cpu_set_t   own_cores;
    int         own_policy;
    sched_param own_priority;

    void remember() {
        pthread_getaffinity_np(pthread_self(), sizeof(own_cores), &own_cores);
        pthread_getschedparam(pthread_self(), &own_policy, &own_priority);
    }

    void give_back() const {
        pthread_setschedparam(pthread_self(), own_policy, &own_priority);
        pthread_setaffinity_np(pthread_self(), sizeof(own_cores), &own_cores);
    }
#else
    void remember() {}

    void give_back() const {}
#endif
};

static thread_local binding state;

bool mtp_bind_thread(const bool * mask, int32_t prio) {
    if (!mask && prio == GGML_SCHED_PRIO_NORMAL) {
        mtp_release_thread();
        return false;
    }
    cores wanted = {};
    if (mask) {
        std::copy_n(mask, wanted.size(), wanted.begin());
    }
    if (state.is_bound && state.prio == prio && state.mask == wanted) {
        return false;
    }
    mtp_release_thread();
    state.remember();
    state.is_bound = true;
    state.mask     = wanted;
    state.prio     = prio;
    return true;
}

void mtp_release_thread(void) {
    if (state.is_bound) {
        state.give_back();
        state.is_bound = false;
    }
}
