#pragma once

// Where exceptions end. Every entry of the C interface that can fail runs inside of one of these, so that nothing is
// thrown into C, and what was thrown is named. Knows statuses and messages; no session.

#include "pymtp.h"

#include <cstdio>
#include <exception>
#include <new>
#include <type_traits>

// Remembers why, for pymtp_error_message, and returns the status. Takes no memory.
pymtp_status pymtp_fail(pymtp_status status, const char * format, ...);

// the exception at hand, as a failure
inline pymtp_status pymtp_fail_thrown() noexcept {
    try {
        throw;
    } catch (const std::bad_alloc &) {
        return pymtp_fail(PYMTP_FAILED, "the memory has run out");
    } catch (const std::exception & err) {
        return pymtp_fail(PYMTP_FAILED, "%s", err.what());
    } catch (...) {
        return pymtp_fail(PYMTP_FAILED, "something was thrown that is no exception");
    }
}

// of an entry that returns a status
template <typename F> int32_t pymtp_guard(F && entry) noexcept {
    try {
        return entry();
    } catch (...) {
        return pymtp_fail_thrown();
    }
}

// of an entry that returns something else: `fallback` if it throws
template <typename F> auto pymtp_guard_or(std::invoke_result_t<F> fallback, F && entry) noexcept -> decltype(fallback) {
    try {
        return entry();
    } catch (...) {
        pymtp_fail_thrown();
        return fallback;
    }
}

// what a function has thrown, in words
struct pymtp_reason {
    char text[1024] = "";

    bool empty() const { return text[0] == '\0'; }
};

// Where something has to be undone after a failure. Empty if nothing is thrown.
template <typename F> pymtp_reason pymtp_thrown(F && function) noexcept {
    pymtp_reason reason;
    try {
        function();
    } catch (...) {
        pymtp_fail_thrown();
        snprintf(reason.text, sizeof(reason.text), "%s", pymtp_error_message());
    }
    return reason;
}
