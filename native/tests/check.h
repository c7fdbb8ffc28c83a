#pragma once

// What the native tests check with. A check that fails says where and continues; the program then ends with status 1.

#include <cstdio>
#include <sstream>

inline int g_n_failed = 0;
inline int g_n_tests  = 0; // that were met
inline int g_part     = 0; // of g_n_parts: the tests that are run, where processes share them
inline int g_n_parts  = 1;

inline void check_failed(const char * file, int line, const char * what, const char * more = "") {
    fprintf(stderr, "%s:%d: %s%s\n", file, line, what, more);
    ++g_n_failed;
}

template <typename A, typename B>
void check_equal(const A & a, const B & b, const char * file, int line, const char * what) {
    if (!(a == b)) {
        std::ostringstream more;
        more << ": " << a << " and " << b;
        check_failed(file, line, what, more.str().c_str());
    }
}

#define CHECK(condition)                                  \
    do {                                                  \
        if (!(condition)) {                               \
            check_failed(__FILE__, __LINE__, #condition); \
        }                                                 \
    } while (0)

#define CHECK_EQUAL(a, b) check_equal(a, b, __FILE__, __LINE__, #a " == " #b)

// Runs a test, a function without arguments that is called what it shows.
#define RUN(test)                                                               \
    do {                                                                        \
        if (g_n_tests++ % g_n_parts != g_part) {                                \
            break;                                                              \
        }                                                                       \
        const int n_failed = g_n_failed;                                        \
        test();                                                                 \
        printf("%s %s\n", g_n_failed == n_failed ? "ok    " : "FAILED", #test); \
        fflush(stdout);                                                         \
    } while (0)
