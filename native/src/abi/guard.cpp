// Messages of failures, numbers of handles, and what happens to their tables at a fork.

#include "guard.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

#ifndef _WIN32
#    include <pthread.h>
#endif

static thread_local char g_error[1024];

static void set_message(const char * format, va_list args) {
    vsnprintf(g_error, sizeof(g_error), format, args);
}

pymtp_status pymtp_fail(pymtp_status status, const char * format, ...) {
    va_list args;
    va_start(args, format);
    set_message(format, args);
    va_end(args);
    return status;
}

void pymtp_refuse(const char * format, ...) {
    va_list args;
    va_start(args, format);
    set_message(format, args);
    va_end(args);
    throw pymtp_refused();
}

const char * pymtp_error_message(void) {
    return g_error;
}

uintptr_t pymtp_next_handle() {
    // multiples of 64, so that they look like pointers to whoever prints them
    static std::atomic<uintptr_t> next{ 64 };
    return next.fetch_add(64);
}

void pymtp_at_fork(void (*before)(), void (*in_parent)(), void (*in_child)()) {
#ifndef _WIN32
    pthread_atfork(before, in_parent, in_child);
#else
    (void) before;
    (void) in_parent;
    (void) in_child;
#endif
}
