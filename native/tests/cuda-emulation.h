#pragma once

// Runs a CUDA kernel on the CPU: each thread of a thread block is a fiber, which switches to the next one where threads
// wait for each other. Has those of CUDA's functions that the kernels of few rows call, under their names.

#include "ggml.h"

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#    include <sanitizer/common_interface_defs.h>
#    define EMULATION_LEAVE(state, bottom, size) __sanitizer_start_switch_fiber(state, bottom, size)
#    define EMULATION_ARRIVE(state)              __sanitizer_finish_switch_fiber(state, nullptr, nullptr)
#else
#    define EMULATION_LEAVE(state, bottom, size) (void) 0
#    define EMULATION_ARRIVE(state)              (void) 0
#endif

struct emulated_place {
    unsigned x = 0, y = 0;
};

static emulated_place threadIdx;
static emulated_place blockIdx;
static emulated_place gridDim;

class emulated_block {
    static constexpr size_t STACK_SIZE = 32 << 10;
    static constexpr int    N_LANES    = 32;

    struct barrier {
        int n_arrived  = 0;
        int generation = 0;
    };

    struct copy {
        void *       to;
        const void * from;
        size_t       size;
    };

    struct fiber {
        ucontext_t context;
        void *     fake_stack = nullptr; // AddressSanitizer's
        bool       is_done    = false;

        const barrier * waits_for  = nullptr;
        int             generation = 0;        // of that barrier

        int n_shown = 0;                       // how often it has shown words

        std::vector<std::vector<copy>> copies; // committed, the oldest first
        std::vector<copy>              begun;
    };

    std::vector<fiber>    fibers;
    std::vector<barrier>  warps;
    barrier               all;
    barrier               teams[16];
    std::vector<uint32_t> shown[2]; // what threads show to the others of their warp, by turns: one may be a turn ahead
    ucontext_t            scheduler;
    void *                scheduler_fake_stack = nullptr;
    const void *          scheduler_bottom     = nullptr;
    size_t                scheduler_size       = 0;

    std::function<void()> kernel;

    // the same ones for all blocks
    static char * stack(size_t i) {
        static std::vector<std::unique_ptr<char[]>> stacks;
        while (stacks.size() <= i) {
            stacks.emplace_back(new char[STACK_SIZE]);
        }
        return stacks[i].get();
    }

    static void enter() {
        emulated_block & block = *current;
        const unsigned   i     = threadIdx.x;
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(nullptr, &block.scheduler_bottom, &block.scheduler_size);
#endif
        block.kernel();
        block.fibers[i].is_done = true;
        EMULATION_LEAVE(nullptr, block.scheduler_bottom, block.scheduler_size);
        setcontext(&block.scheduler);
    }

    // as far as each of its threads comes; false: all wait for other warps, or have ended
    bool run_warp(size_t warp) {
        bool goes_on = false;
        for (size_t i = warp * N_LANES; i < (warp + 1) * N_LANES; ++i) {
            const fiber & it = fibers[i];
            if (!it.is_done && !(it.waits_for && it.waits_for->generation == it.generation)) {
                threadIdx.x = i;
                EMULATION_LEAVE(&scheduler_fake_stack, stack(i), STACK_SIZE);
                swapcontext(&scheduler, &fibers[i].context);
                EMULATION_ARRIVE(scheduler_fake_stack);
                goes_on = true;
            }
        }
        return goes_on;
    }

    void wait(barrier & with, int n) {
        const int generation           = with.generation;
        fibers[threadIdx.x].waits_for  = &with;
        fibers[threadIdx.x].generation = generation;
        if (++with.n_arrived == n) {
            with.n_arrived = 0;
            ++with.generation;
        }
        while (with.generation == generation) {
            const unsigned i = threadIdx.x;
            EMULATION_LEAVE(&fibers[i].fake_stack, scheduler_bottom, scheduler_size);
            swapcontext(&fibers[i].context, &scheduler);
            EMULATION_ARRIVE(fibers[i].fake_stack);
        }
    }

  public:
    static constexpr int N_SHOWN = 6; // words at most

    static inline emulated_block * current = nullptr;

    std::vector<char> shared; // starts at a multiple of 16

    emulated_block(int n_threads, size_t shared_size) :
        fibers(n_threads), warps(n_threads / N_LANES), shared(shared_size) {
        for (auto & words : shown) {
            words.resize(n_threads * N_SHOWN);
        }
    }

    void run(std::function<void()> what) {
        kernel  = std::move(what);
        current = this;
        for (auto & it : fibers) {
            getcontext(&it.context);
            it.context.uc_stack.ss_sp   = stack(&it - fibers.data());
            it.context.uc_stack.ss_size = STACK_SIZE;
            it.context.uc_link          = nullptr;
            makecontext(&it.context, enter, 0);
        }
        // A warp runs for as long as it can, first the last one, then the others: what lacks a barrier shows.
        for (bool goes_on = true; goes_on;) {
            goes_on = false;
            for (size_t warp = warps.size(); warp-- > 0;) {
                while (run_warp(warp)) {
                    goes_on = true;
                }
            }
        }
        for (const auto & it : fibers) {
            if (!it.is_done) {
                std::abort(); // threads wait for one that has ended
            }
        }
    }

    void sync_warp() { wait(warps[threadIdx.x / N_LANES], N_LANES); }

    void sync_all() { wait(all, (int) fibers.size()); }

    void sync_team(int team, int n_threads) { wait(teams[team], n_threads); }

    // copies that run beside the thread: they are made when it waits for them, not earlier
    void begin_copy(void * to, const void * from, size_t size) {
        fibers[threadIdx.x].begun.push_back({ to, from, size });
    }

    void commit_copies() {
        auto & it = fibers[threadIdx.x];
        it.copies.push_back(std::move(it.begun));
        it.begun.clear();
    }

    void wait_for_copies(size_t n_left) {
        auto & copies = fibers[threadIdx.x].copies;
        while (copies.size() > n_left) {
            for (const auto & it : copies.front()) {
                std::memcpy(it.to, it.from, it.size);
            }
            copies.erase(copies.begin());
        }
    }

    // the words that each lane of the warp shows, at multiples of N_SHOWN, until its threads show others
    const uint32_t * show(std::initializer_list<uint32_t> words) {
        auto & by_thread = shown[fibers[threadIdx.x].n_shown++ % 2];
        std::copy(words.begin(), words.end(), by_thread.begin() + threadIdx.x * N_SHOWN);
        sync_warp();
        return by_thread.data() + threadIdx.x / N_LANES * N_LANES * N_SHOWN;
    }

    uint32_t exchange(uint32_t value, unsigned lane_mask) {
        return show({ value })[(threadIdx.x % N_LANES ^ lane_mask) * N_SHOWN];
    }

    unsigned ballot(bool value) {
        const uint32_t * values = show({ value });
        unsigned         res    = 0;
        for (int i = 0; i < N_LANES; ++i) {
            res |= values[i * N_SHOWN] << i;
        }
        return res;
    }
};

// --- CUDA's functions ---

using std::min;

struct half {
    ggml_fp16_t bits;
};

inline half __ushort_as_half(unsigned short bits) {
    return { bits };
}

inline float __half2float(half value) {
    return ggml_fp16_to_fp32(value.bits);
}

inline float __int_as_float(int bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

inline float __fmul_rn(float a, float b) {
    return a * b;
}

inline float __fadd_rn(float a, float b) {
    return a + b;
}

inline float __fmaf_rn(float a, float b, float c) {
    return std::fma(a, b, c);
}

inline int __popc(unsigned bits) {
    return __builtin_popcount(bits);
}

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const uint64_t both = (uint64_t) high << 32 | low;
    unsigned       res  = 0;
    for (int i = 0; i < 4; ++i) {
        res |= (unsigned) (both >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
    }
    return res;
}

inline void __syncthreads() {
    emulated_block::current->sync_all();
}

inline void __syncwarp() {
    emulated_block::current->sync_warp();
}

inline float __shfl_xor_sync(unsigned, float value, int lane_mask) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return __int_as_float((int) emulated_block::current->exchange(bits, lane_mask));
}

inline unsigned __ballot_sync(unsigned, bool value) {
    return emulated_block::current->ballot(value);
}

inline void __pipeline_memcpy_async(void * to, const void * from, size_t size) {
    emulated_block::current->begin_copy(to, from, size);
}

inline void __pipeline_commit() {
    emulated_block::current->commit_copies();
}

inline void __pipeline_wait_prior(int n) {
    emulated_block::current->wait_for_copies(n);
}

inline void ggml_cuda_pdl_lc() {}

inline void ggml_cuda_pdl_sync() {}

inline float ggml_cuda_op_silu_single(float x) {
    return x / (1.0f + std::exp(-x));
}

// others are no part of the tests
inline float ggml_cuda_op_gelu_single(float) {
    std::abort();
}

inline float ggml_cuda_op_swiglu_oai_single(float, float) {
    std::abort();
}

inline float ggml_cuda_op_swiglu_clamp_single(float, float, float) {
    std::abort();
}

#define FEW_ROWS_KERNEL
#define FEW_ROWS_LAUNCH_BOUNDS(n_threads, n_blocks)
#define FEW_ROWS_SHARED(name) char * name = emulated_block::current->shared.data()

#include "cuda-few-rows-words.cuh"

// --- products of bytes, and tensor cores, as cuda-tensor-cores.cuh has them ---

// IS_UNSIGNED: a
template <bool IS_UNSIGNED> int few_rows_dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) {
        const int byte = a >> (8 * i);
        c += (IS_UNSIGNED ? (uint8_t) byte : (int8_t) byte) * (int8_t) (b >> (8 * i));
    }
    return c;
}

struct more_rows_tile {
    int of[4];
};

inline void more_rows_sync_team(int team) {
    emulated_block::current->sync_team(team, 128);
}

// Of each lane's words at `a` those of its matrix row, at `b` those of the row 8 below, at `column` those of its column:
// adds to the sums of rows and columns.
template <bool IS_UNSIGNED>
static void emulated_multiply(const uint32_t * shown, int a, int b, int column, int (&sums)[4]) {
    const int  lane = (int) threadIdx.x % 32;
    const auto word = [&](int of, int at) {
        return (int) shown[of * emulated_block::N_SHOWN + at];
    };
    for (int i = 0; i < 4; ++i) {
        for (int t = 0; t < 4; ++t) {
            sums[i] = few_rows_dp4a<IS_UNSIGNED>(word(lane / 4 * 4 + t, i / 2 ? b : a),
                                                 word((lane % 4 * 2 + i % 2) * 4 + t, column), sums[i]);
        }
    }
}

inline void more_rows_load_matrices(int (&to)[4], const char * row) {
    const int lane = (int) threadIdx.x % 32;
    uint32_t  words[4];
    std::memcpy(words, row, sizeof(words));
    const uint32_t * shown = emulated_block::current->show({ words[0], words[1], words[2], words[3] });
    for (int i = 0; i < 4; ++i) {
        to[i] = (int) shown[(8 * i + lane / 4) * emulated_block::N_SHOWN + lane % 4];
    }
}

inline void more_rows_copy_if(bool is_there, char * to, const char * from) {
    if (is_there) {
        __pipeline_memcpy_async(to, from, 16);
    }
}

inline more_rows_tile more_rows_multiply_16(int a0, int a1, int b) {
    more_rows_tile d = { { FEW_ROWS_BEGIN, FEW_ROWS_BEGIN, FEW_ROWS_BEGIN, FEW_ROWS_BEGIN } };
    emulated_multiply<false>(emulated_block::current->show({ (uint32_t) a0, (uint32_t) a1, (uint32_t) b }), 0, 1, 2,
                             d.of);
    return d;
}

template <bool IS_UNSIGNED> more_rows_tile more_rows_multiply_32(const int (&a)[4], const int (&b)[2]) {
    more_rows_tile d = { { FEW_ROWS_BEGIN, FEW_ROWS_BEGIN, FEW_ROWS_BEGIN, FEW_ROWS_BEGIN } };

    const uint32_t * shown = emulated_block::current->show(
        { (uint32_t) a[0], (uint32_t) a[1], (uint32_t) a[2], (uint32_t) a[3], (uint32_t) b[0], (uint32_t) b[1] });
    emulated_multiply<IS_UNSIGNED>(shown, 0, 1, 4, d.of);
    emulated_multiply<IS_UNSIGNED>(shown, 2, 3, 5, d.of);
    return d;
}

// --- the same of halves, as cuda-many-rows-kernel.cuh uses them ---

struct __half2 {
    half x, y;
};

struct float4 {
    float x, y, z, w;
};

inline half __float2half(float value) {
    return { ggml_fp32_to_fp16(value) };
}

inline __half2 __half2half2(half value) {
    return { value, value };
}

inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    const auto add = [](half x, half y, half z) {
        return __float2half(std::fma(__half2float(x), __half2float(y), __half2float(z)));
    };
    return { add(a.x, b.x, c.x), add(a.y, b.y, c.y) };
}

inline __half2 __hmul2(__half2 a, __half2 b) {
    return __hfma2(a, b, {});
}

inline __half2 __hsub2(__half2 a, __half2 b) {
    return __hfma2(b, __half2half2(__float2half(-1.0f)), a);
}

inline int __shfl_sync(unsigned, int value, int lane) {
    return (int) emulated_block::current->show({ (uint32_t) value })[lane * emulated_block::N_SHOWN];
}

inline float4 __ldcg(const float4 * from) {
    return *from;
}

inline unsigned many_rows_bits(__half2 pair) {
    return (unsigned) pair.y.bits << 16 | pair.x.bits;
}

inline int many_rows_count(unsigned * counter, int n_others) {
    const int n = (int) *counter;
    *counter    = n == n_others ? 0 : n + 1;
    return n;
}

inline int many_rows_counted(unsigned * counter, int n_others) {
    const int n = (int) *counter;
    *counter    = n == n_others ? 0 : n;
    return n;
}

inline void many_rows_fence_copies() {}

template <int N> void many_rows_wait_products() {}

// 16 matrix rows and 8 columns of 16 halves: a lane has of two rows two pairs each, and two pairs of a column
inline void many_rows_multiply_16(const unsigned (&a)[4], unsigned b0, unsigned b1, float (&sums)[4]) {
    const uint32_t * shown = emulated_block::current->show({ a[0], a[1], a[2], a[3], b0, b1 });
    const int        lane  = (int) threadIdx.x % 32;
    const auto       dot   = [&](int row, int row_word, int column, int column_word) {
        const uint32_t x = shown[row * emulated_block::N_SHOWN + row_word];
        const uint32_t y = shown[column * emulated_block::N_SHOWN + column_word];
        return ggml_fp16_to_fp32(x & 0xffff) * ggml_fp16_to_fp32(y & 0xffff) +
               ggml_fp16_to_fp32(x >> 16) * ggml_fp16_to_fp32(y >> 16);
    };
    for (int i = 0; i < 4; ++i) {
        for (int t = 0; t < 4; ++t) {
            const int row    = lane / 4 * 4 + t;
            const int column = (lane % 4 * 2 + i % 2) * 4 + t;
            sums[i] += dot(row, i / 2, column, 4) + dot(row, 2 + i / 2, column, 5);
        }
    }
}
