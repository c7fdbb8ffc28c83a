#include "check.h"
#include "cpu-busy-cores.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "random-values.h"

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

static void passes_with_fewer_threads_are_what_they_are_with_all() {
    ggml_context_ptr ctx{ ggml_init({ 1 << 20, nullptr, true }) };
    ggml_backend_ptr backend{ ggml_backend_cpu_init() };
    ggml_backend_cpu_set_n_threads(backend.get(), 3);

    ggml_tensor * weights = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_Q8_0, 512, 130);
    ggml_tensor * rows    = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 512, 5);
    ggml_tensor * node =
        ggml_soft_max(ctx.get(), ggml_mul_mat(ctx.get(), weights, ggml_rms_norm(ctx.get(), rows, 1e-6f)));
    ggml_backend_buffer_ptr buf{ ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()) };

    const auto packed = random_q8_0(ggml_nrows(weights), weights->ne[0]);
    const auto values = random_values(ggml_nelements(rows));
    ggml_backend_tensor_set(weights, packed.data(), 0, packed.size());
    ggml_backend_tensor_set(rows, values.data(), 0, ggml_nbytes(rows));
    ggml_cgraph * gf = ggml_new_graph_custom(ctx.get(), 32, false);
    ggml_build_forward_expand(gf, node);
    CHECK(!mtp_may_leave_threads_out(gf));
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        ggml_graph_node(gf, i)->flags |= GGML_TENSOR_FLAG_SINGLE_ROWS;
    }
    CHECK(mtp_may_leave_threads_out(gf));

    in_a_thread([&] {
        std::vector<std::vector<float>> results;
        for (int n_threads = 3; n_threads >= 1; --n_threads) {
            while (mtp_n_threads(3) > n_threads) {
                mtp_note_pass(3, 20 * MS, 20 * MS);
            }
            CHECK_EQUAL(ggml_backend_graph_compute(backend.get(), gf), GGML_STATUS_SUCCESS);
            results.emplace_back(ggml_nelements(node));
            ggml_backend_tensor_get(node, results.back().data(), 0, ggml_nbytes(node));
            CHECK(results.back() == results.front());
        }
    });
}

int main() {
    RUN(passes_that_lose_much_time_get_one_thread_less);
    RUN(one_slow_pass_that_is_short_says_nothing);
    RUN(the_thread_comes_back_and_later_each_time_it_loses_its_core_again);
    RUN(passes_with_fewer_threads_are_what_they_are_with_all);
    return g_n_failed > 0;
}
