#pragma once

// What every entry of the C interface runs inside of: exceptions end here, handles and pointers are checked here, and
// no two threads are in one handle at a time. Knows statuses and messages; no session. CONTRIBUTING.md says how to add an
// entry.

#include "grammar-work.h"
#include "pymtp.h"
#include "rpc-link.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>

// Thrown where an entry fails; the message is set.
struct pymtp_failure {
    pymtp_status status;
};

// Ends an entry with this status, or with PYMTP_INVALID, and this message.
[[noreturn]] void pymtp_fail(pymtp_status status, const char * format, ...);

template <typename... A> [[noreturn]] void pymtp_refuse(const char * format, A... arguments) {
    pymtp_fail(PYMTP_INVALID, format, arguments...);
}

template <typename... A> void pymtp_fail_if(bool has_failed, pymtp_status status, const char * format, A... arguments) {
    if (has_failed) {
        pymtp_fail(status, format, arguments...);
    }
}

template <typename... A> void pymtp_refuse_if(bool is_wrong, const char * format, A... arguments) {
    pymtp_fail_if(is_wrong, PYMTP_INVALID, format, arguments...);
}

// Remembers why, for pymtp_error_message. Takes no memory.
void pymtp_set_error(const char * why);

// the current exception, as a status and a message
inline pymtp_status pymtp_status_thrown() noexcept {
    const auto fails = [](pymtp_status status, const char * why) {
        pymtp_set_error(why);
        return status;
    };
    try {
        throw;
    } catch (const pymtp_failure & failure) {
        return failure.status; // it has its message
    } catch (const std::bad_alloc &) {
        return fails(PYMTP_FAILED, "the memory has run out");
    } catch (const grammar_error & err) {
        return fails(PYMTP_INVALID, err.what());
    } catch (const mtp_rpc_error & err) {
        return fails(PYMTP_LOST, err.what());
    } catch (const std::exception & err) {
        return fails(PYMTP_FAILED, err.what());
    } catch (...) {
        return fails(PYMTP_FAILED, "unknown exception");
    }
}

// Runs an entry that returns a status.
template <typename F> int32_t pymtp_guard(F && entry) noexcept {
    try {
        entry();
        return PYMTP_OK;
    } catch (...) {
        return pymtp_status_thrown();
    }
}

// Runs an entry that returns something else: `fallback` if it throws.
template <typename F> auto pymtp_guard_or(std::invoke_result_t<F> fallback, F && entry) noexcept -> decltype(fallback) {
    try {
        return entry();
    } catch (...) {
        pymtp_status_thrown();
        return fallback;
    }
}

// What callers hold of our objects. A handle is a number that is never used twice, in the guise of a pointer: one that
// was freed, or that never was one, is found out instead of followed. Calls on one object from several threads are
// queued, and freeing an object waits for the call that is under way.
//
// A class that callers hold names itself: static constexpr const char * what = "session".
struct pymtp_place {
    std::recursive_mutex  mutex;
    std::shared_ptr<void> object; // nullptr: it was freed
    const void *          kind;   // where its class has its name
};

void * pymtp_add_handle(std::shared_ptr<void> object, const void * kind);

// nullptr for what is no handle of this kind
std::shared_ptr<pymtp_place> pymtp_find_handle(const void * handle, const void * kind);

// An object for the length of a call. Throws pymtp_failure if the handle is invalid.
template <typename T> class pymtp_hold {
  public:
    explicit pymtp_hold(const T * handle) : place(pymtp_find_handle(handle, &T::what)) {
        if (place) {
            lock = std::unique_lock<std::recursive_mutex>(place->mutex);
        }
        pymtp_refuse_if(!place || !place->object, "this is no %s: it was freed, or never made", T::what);
    }

    T & operator*() const { return *(T *) place->object.get(); }

    T * operator->() const { return &**this; }

    // one that never changes need not be held: it may be freed meanwhile
    std::shared_ptr<const T> share() const { return std::static_pointer_cast<const T>(place->object); }

  private:
    std::shared_ptr<pymtp_place>           place;
    std::unique_lock<std::recursive_mutex> lock;
};

// Runs an entry with a handle, which is held meanwhile.
template <typename T, typename F> int32_t pymtp_guard(const T * handle, F && entry) noexcept {
    return pymtp_guard([&] {
        const pymtp_hold<T> held(handle);
        entry(*held);
    });
}

template <typename R, typename T, typename F> R pymtp_guard_or(R fallback, const T * handle, F && entry) noexcept {
    return pymtp_guard_or(fallback, [&]() -> R {
        const pymtp_hold<T> held(handle);
        return entry(*held);
    });
}

// for an entry that makes a handle: it is NULL unless the entry succeeds
template <typename T> void pymtp_give(T ** out, std::unique_ptr<T> object) {
    *out = (T *) pymtp_add_handle(std::move(object), &T::what);
}

// Refuses NULL, where an entry writes or reads something.
template <typename T> T & pymtp_need(T * pointer, const char * what) {
    pymtp_refuse_if(!pointer, "no place for %s (NULL)", what);
    return *pointer;
}

// Refuses arrays that cannot be: their number is not between 0 and n_max, or there is no array.
inline void pymtp_need_array(const void * array, int64_t n, int64_t n_max, const char * what) {
    pymtp_refuse_if(n < 0 || n > n_max, "%lld %s: 0 to %lld are possible", (long long) n, what, (long long) n_max);
    pymtp_refuse_if(n > 0 && !array, "no %s (NULL), of which there are to be %lld", what, (long long) n);
}

// Refuses what is no token of a vocabulary of n_vocab.
inline void pymtp_need_tokens(const int32_t * token, int32_t n, int32_t n_vocab) {
    for (int32_t i = 0; i < n; ++i) {
        pymtp_refuse_if(token[i] < 0 || token[i] >= n_vocab, "token %d is not in the vocabulary of %d", token[i],
                        n_vocab);
    }
}

// what a function has thrown, in words and as a failure
struct pymtp_reason {
    char         text[1024] = "";
    pymtp_status status     = PYMTP_OK;

    bool empty() const { return text[0] == '\0'; }
};

// Where something has to be undone after a failure. Empty if nothing is thrown.
template <typename F> pymtp_reason pymtp_thrown(F && function) noexcept {
    pymtp_reason reason;
    try {
        function();
    } catch (...) {
        reason.status = pymtp_status_thrown();
        snprintf(reason.text, sizeof(reason.text), "%s", pymtp_error_message());
    }
    return reason;
}

// Whatever the function throws is a failure of this status. format: of the message, with a %s for what was thrown
template <typename F> void pymtp_fails_as(pymtp_status status, const char * format, F && function) {
    const pymtp_reason why = pymtp_thrown(function);
    pymtp_fail_if(!why.empty(), status, format, (const char *) why.text);
}

// llama.cpp's asserts, which end the process, as exceptions: while one of these lives, a failed assert of its thread
// throws std::runtime_error. For damaged files, and not while graphs are computed, where other threads wait for the one
// that fails.
class pymtp_catch_asserts {
  public:
    pymtp_catch_asserts();
    ~pymtp_catch_asserts();

    pymtp_catch_asserts(const pymtp_catch_asserts &)             = delete;
    pymtp_catch_asserts & operator=(const pymtp_catch_asserts &) = delete;

    // the last one that failed, in words; "" if none has
    const char * failed() const;
};
