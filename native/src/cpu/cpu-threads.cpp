#include "cpu-threads.h"

#include "ggml-impl.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#if defined(__x86_64__) || defined(_M_X64)
#    include <immintrin.h>
#endif
#if !defined(_WIN32)
#    include <time.h>
#endif
#if defined(__linux__) && !defined(__ANDROID__)
#    include <pthread.h>
#    include <sched.h>
#endif

// --- cores that others keep busy

static constexpr int64_t MS = 1000 * 1000;

// passes together last so long before their lost time counts: less than a time slice says little
static constexpr int64_t WINDOW_NS = 8 * MS;

// until one thread more is tried again; twice as long each time that others still take its core
static constexpr int64_t PAUSE_MIN_NS = 100 * MS;
static constexpr int64_t PAUSE_MAX_NS = 1600 * MS;

// looks before a waiting thread offers its core to others: longer than threads with a core of their own mostly wait
static constexpr int N_SPINS = 200;

// What a thread that starts passes knows of its cores.
struct busy_cores {
    int     n_left_out = 0;
    bool    is_trial   = false;
    int64_t pause_ns   = PAUSE_MIN_NS;
    int64_t retry_at   = 0;

    // since the window began
    int64_t pass_ns = 0;
    int64_t lost_ns = 0;

    void begin_window() { pass_ns = lost_ns = 0; }

    void leave_one_out() {
        pause_ns = is_trial ? std::min(2 * pause_ns, PAUSE_MAX_NS) : PAUSE_MIN_NS;
        retry_at = mtp_now_ns() + pause_ns;
        is_trial = false;
        n_left_out++;
    }

    void try_one_more() {
        n_left_out--;
        is_trial = true;
        begin_window();
    }
};

static thread_local busy_cores busy;

// The share of a pass that its slowest thread loses from which one thread fewer is faster: with n threads the others
// take n / (n - 1) of the time. Small passes gain less by threads than that.
static double worst_share(int n_threads) {
    return std::max(0.7 / n_threads, 0.1);
}

bool mtp_may_leave_threads_out(const ggml_cgraph * graph) {
    return graph->n_nodes > 0 && (graph->nodes[0]->flags & GGML_TENSOR_FLAG_SINGLE_ROWS);
}

int mtp_n_threads(int n_threads) {
    if (busy.n_left_out > 0 && n_threads > 1 && mtp_now_ns() >= busy.retry_at) {
        busy.try_one_more();
    }
    return std::max(1, n_threads - busy.n_left_out);
}

void mtp_note_pass(int n_threads, int64_t pass_ns, int64_t lost_ns) {
    if (n_threads < 2) {
        return;
    }
    busy.pass_ns += pass_ns;
    busy.lost_ns += lost_ns;
    if (busy.pass_ns < WINDOW_NS) {
        return;
    }
    if (busy.lost_ns > worst_share(n_threads) * busy.pass_ns) {
        busy.leave_one_out();
    } else {
        busy.is_trial = false;
    }
    busy.begin_window();
}

int64_t mtp_now_ns(void) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

int64_t mtp_off_core_ns(void) {
#if defined(CLOCK_THREAD_CPUTIME_ID)
    timespec on_core;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &on_core) == 0) {
        return mtp_now_ns() - (on_core.tv_sec * 1000 * MS + on_core.tv_nsec);
    }
#endif
    return 0;
}

void mtp_wait(int n_tries) {
    if (n_tries > N_SPINS) {
        std::this_thread::yield();
        return;
    }
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
    __asm__ volatile("yield" ::: "memory");
#endif
}

// --- threads that are bound

using cores = std::array<bool, GGML_MAX_N_THREADS>;

// What a thread is bound to.
struct binding {
    bool  is_bound = false;
    cores mask     = {};

    // what it had before; elsewhere than on Linux a thread stays bound
#if defined(__linux__) && !defined(__ANDROID__)
    cpu_set_t own_cores;

    void remember() { pthread_getaffinity_np(pthread_self(), sizeof(own_cores), &own_cores); }

    void give_back() const { pthread_setaffinity_np(pthread_self(), sizeof(own_cores), &own_cores); }
#else
    void remember() {}

    void give_back() const {}
#endif
};

static thread_local binding bound;

bool mtp_bind_thread(const bool * mask) {
    if (!mask) {
        mtp_release_thread();
        return false;
    }
    cores wanted;
    std::copy_n(mask, wanted.size(), wanted.begin());
    if (bound.is_bound && bound.mask == wanted) {
        return false;
    }
    mtp_release_thread();
    bound.remember();
    bound.is_bound = true;
    bound.mask     = wanted;
    return true;
}

void mtp_release_thread(void) {
    if (bound.is_bound) {
        bound.give_back();
        bound.is_bound = false;
    }
}
