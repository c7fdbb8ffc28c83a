#include "check.h"
#include "cpu-threads.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "random-values.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

static constexpr int64_t MS = 1000 * 1000;

static void sleep_ms(int n) {
    std::this_thread::sleep_for(std::chrono::milliseconds(n));
}

// each case has a thread of its own, as what is known of busy cores belongs to a thread
template <typename T> static void in_a_thread(T body) {
    std::thread(body).join();
}

static void passes_that_lose_much_time_get_one_thread_less() {
    in_a_thread([] {
        mtp_note_pass(4, 20 * MS, 1 * MS);
        CHECK_EQUAL(mtp_n_threads(4), 4);
        mtp_note_pass(4, 20 * MS, 10 * MS);
        CHECK_EQUAL(mtp_n_threads(4), 3);
        mtp_note_pass(3, 20 * MS, 10 * MS);
        CHECK_EQUAL(mtp_n_threads(4), 2);
        CHECK_EQUAL(mtp_n_threads(1), 1);
    });
}

static void one_slow_pass_that_is_short_says_nothing() {
    in_a_thread([] {
        mtp_note_pass(2, 1 * MS, 1 * MS);
        CHECK_EQUAL(mtp_n_threads(2), 2);
        mtp_note_pass(2, 30 * MS, 0);
        CHECK_EQUAL(mtp_n_threads(2), 2);
    });
}

static void the_thread_comes_back_and_later_each_time_it_loses_its_core_again() {
    in_a_thread([] {
        mtp_note_pass(2, 20 * MS, 20 * MS);
        CHECK_EQUAL(mtp_n_threads(2), 1);
        sleep_ms(110);
        CHECK_EQUAL(mtp_n_threads(2), 2);
        mtp_note_pass(2, 20 * MS, 20 * MS);
        sleep_ms(110);
        CHECK_EQUAL(mtp_n_threads(2), 1); // 200 ms now
        sleep_ms(110);
        CHECK_EQUAL(mtp_n_threads(2), 2);
        mtp_note_pass(2, 20 * MS, 0);
        sleep_ms(210);
        CHECK_EQUAL(mtp_n_threads(2), 2);
    });
}

// The most that a waiting thread has looked for another one in vain. Stands before the function of this name.
static std::atomic<int> g_n_tries{ 0 };

void mtp_wait(int n_tries) {
    static const auto wait = (void (*)(int)) dlsym(RTLD_NEXT, "mtp_wait");

    for (int most = g_n_tries; n_tries > most && !g_n_tries.compare_exchange_weak(most, n_tries);) {
    }
    wait(n_tries);
}

// a graph of a few nodes, which three threads compute
struct graph {
    ggml_context_ptr        ctx{ ggml_init({ 1 << 20, nullptr, true }) };
    ggml_backend_ptr        backend{ ggml_backend_cpu_init() };
    ggml_backend_buffer_ptr buf;
    ggml_cgraph *           gf = ggml_new_graph_custom(ctx.get(), 32, false);
    ggml_tensor *           result;

    graph() {
        ggml_backend_cpu_set_n_threads(backend.get(), 3);
        ggml_tensor * weights = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_Q8_0, 512, 130);
        ggml_tensor * rows    = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 512, 5);
        result = ggml_soft_max(ctx.get(), ggml_mul_mat(ctx.get(), weights, ggml_rms_norm(ctx.get(), rows, 1e-6f)));
        buf.reset(ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()));

        const auto packed = random_q8_0(ggml_nrows(weights), weights->ne[0]);
        const auto values = random_values(ggml_nelements(rows));
        ggml_backend_tensor_set(weights, packed.data(), 0, packed.size());
        ggml_backend_tensor_set(rows, values.data(), 0, ggml_nbytes(rows));
        ggml_build_forward_expand(gf, result);
    }

    // as the engine does
    void mark() {
        for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
            ggml_graph_node(gf, i)->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
        }
    }

    std::vector<float> compute() {
        CHECK_EQUAL(ggml_backend_graph_compute(backend.get(), gf), GGML_STATUS_SUCCESS);
        std::vector<float> res(ggml_nelements(result));
        ggml_backend_tensor_get(result, res.data(), 0, ggml_nbytes(result));
        return res;
    }
};

static void passes_with_fewer_threads_are_what_they_are_with_all() {
    graph all;
    CHECK(!mtp_may_leave_threads_out(all.gf));
    all.mark();
    CHECK(mtp_may_leave_threads_out(all.gf));

    in_a_thread([&] {
        const auto expected = all.compute();
        for (int n_threads = 2; n_threads >= 1; --n_threads) {
            while (mtp_n_threads(3) > n_threads) {
                mtp_note_pass(3, 20 * MS, 20 * MS);
            }
            CHECK(all.compute() == expected);
        }
    });
}

static void only_threads_of_marked_graphs_yield_their_cores() {
    graph all;
    in_a_thread([&] {
        g_n_tries = 0;
        for (int i = 0; i < 50; ++i) {
            all.compute();
        }
        CHECK_EQUAL(g_n_tries.load(), 0);
        all.mark();
        for (int i = 0; i < 50; ++i) {
            all.compute();
        }
        CHECK(g_n_tries > 0);
    });
}

int main() {
    RUN(passes_that_lose_much_time_get_one_thread_less);
    RUN(one_slow_pass_that_is_short_says_nothing);
    RUN(the_thread_comes_back_and_later_each_time_it_loses_its_core_again);
    RUN(passes_with_fewer_threads_are_what_they_are_with_all);
    RUN(only_threads_of_marked_graphs_yield_their_cores);
    return g_n_failed > 0;
}
