#pragma once

// Products of bytes: of 4 of them, as cuda-few-rows-kernel.cuh uses them; and tensor cores, as cuda-more-rows-kernel.cuh
// uses them, 16 matrix rows times 8 columns. From Turing on. IS_UNSIGNED: the weights, which come first.

#include "cuda-more-rows-memory.cuh"

template <bool IS_UNSIGNED> static __device__ __forceinline__ int few_rows_dp4a(int a, int b, int sum) {
    if constexpr (IS_UNSIGNED) {
        asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
        return sum;
    }
    return ggml_cuda_dp4a(a, b, sum);
}

struct more_rows_tile { // a lane's part of 16 matrix rows and 8 columns: two columns of a row, then of the row 8 below
    int of[4];
};

static __device__ __forceinline__ void more_rows_sync_team(int team) {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(MORE_ROWS_TEAM * FEW_ROWS_LANES) : "memory");
}

// four times 8 rows of 16 bytes, of which each lane gives the address of one: a word of each is the lane's
static __device__ __forceinline__ void more_rows_load_matrices(int (&to)[4], const char * row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned) __cvta_generic_to_shared(row))
                 : "memory");
}

// 16 bytes, beside the thread where a GPU can
static __device__ __forceinline__ void more_rows_copy_if(bool is_there, char * to, const char * from) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %0, 0; @p cp.async.cg.shared.global [%1], [%2], 16; }" ::"r"((int) is_there),
        "r"((unsigned) __cvta_generic_to_shared(to)), "l"(from)
        : "memory");
#else
    if (is_there) {
        *(int4 *) to = *(const int4 *) from;
    }
#endif
}

#if __CUDA_ARCH__ < 800
// 8 matrix rows and 16 values at a time
template <bool IS_UNSIGNED>
static __device__ __forceinline__ void more_rows_multiply_8(int & first, int & second, int a, int b) {
#    define MULTIPLY(weights)                                                                         \
        asm("mma.sync.aligned.m8n8k16.row.col.s32." weights ".s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};" \
            : "+r"(first), "+r"(second)                                                               \
            : "r"(a), "r"(b))
    if constexpr (IS_UNSIGNED) {
        MULTIPLY("u8");
    } else {
        MULTIPLY("s8");
    }
#    undef MULTIPLY
}
#endif

// 16 values
static __device__ __forceinline__ more_rows_tile more_rows_multiply_16(int a0, int a1, int b) {
    constexpr int  c = FEW_ROWS_BEGIN;
    more_rows_tile d;
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(d.of[0]), "=r"(d.of[1]), "=r"(d.of[2]), "=r"(d.of[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(c));
#else
    d = { c, c, c, c };
    more_rows_multiply_8<false>(d.of[0], d.of[1], a0, b);
    more_rows_multiply_8<false>(d.of[2], d.of[3], a1, b);
#endif
    return d;
}

// 32 values
template <bool IS_UNSIGNED>
static __device__ __forceinline__ more_rows_tile more_rows_multiply_32(const int (&a)[4], const int (&b)[2]) {
    constexpr int  c = FEW_ROWS_BEGIN;
    more_rows_tile d;
#if __CUDA_ARCH__ >= 800
#    define MULTIPLY(weights)                                            \
        asm("mma.sync.aligned.m16n8k32.row.col.s32." weights             \
            ".s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "     \
            "{%10, %10, %10, %10};"                                      \
            : "=r"(d.of[0]), "=r"(d.of[1]), "=r"(d.of[2]), "=r"(d.of[3]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c))
    if constexpr (IS_UNSIGNED) {
        MULTIPLY("u8");
    } else {
        MULTIPLY("s8");
    }
#    undef MULTIPLY
#else
    d = { c, c, c, c };
    more_rows_multiply_8<IS_UNSIGNED>(d.of[0], d.of[1], a[0], b[0]);
    more_rows_multiply_8<IS_UNSIGNED>(d.of[2], d.of[3], a[1], b[0]);
    more_rows_multiply_8<IS_UNSIGNED>(d.of[0], d.of[1], a[2], b[1]);
    more_rows_multiply_8<IS_UNSIGNED>(d.of[2], d.of[3], a[3], b[1]);
#endif
    return d;
}
