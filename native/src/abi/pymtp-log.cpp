// What llama.cpp says while it works: kept for error messages, shown on request, and what happens when one of its
// asserts fails. Native, because Python that runs inside a callback of llama.cpp would swallow a Ctrl-C.

#include "ggml.h"
#include "guard.h"
#include "llama.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>

static constexpr size_t LOG_KEPT_BYTES = 16 * 1024;

static std::mutex           g_mutex;
static std::string          g_kept;
static std::atomic<int32_t> g_shown_from{ GGML_LOG_LEVEL_CONT };

static void log_receive(ggml_log_level level, const char * text, void *) {
    if (level >= g_shown_from && level < GGML_LOG_LEVEL_CONT) {
        fputs(text, stderr);
    }
    if (level != GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_ERROR) {
        return;
    }
    try {
        const std::lock_guard<std::mutex> lock(g_mutex);
        if (g_kept.size() < LOG_KEPT_BYTES) {
            g_kept += text;
        }
    } catch (...) {
        // without the message, then
    }
}

// --- asserts

static std::atomic<bool> g_exits{ false };

static thread_local int  g_n_catching;
static thread_local char g_failed[256];

#ifndef _WIN32
static constexpr bool CAN_CATCH = true; // what is in between is C that was compiled with tables for it
#else
static constexpr bool CAN_CATCH = false;
#endif

// message: "path/file.cpp:12: GGML_ASSERT(...) failed"
static void on_abort(const char * message) {
    const bool is_memory = strstr(message, "mem_buffer != NULL") || strstr(message, "galloc->") ||
                           strstr(message, "failed to reserve memory");
    if (CAN_CATCH && g_n_catching > 0) {
        if (is_memory) {
            throw std::bad_alloc();
        }
        const char * name = strrchr(message, '/');
        snprintf(g_failed, sizeof(g_failed), "%s", name ? name + 1 : message);
        throw std::runtime_error(g_failed);
    }
    if (g_exits) {
        fprintf(stderr, "pymtp: llama.cpp gave up: %s; %s\n", message,
                is_memory ? "the memory has run out" : "the model file may be damaged, or memory may have run out");
        fflush(stderr);
        _Exit(1);
    }
    // as if this function were not there: with a backtrace
    ggml_set_abort_callback(nullptr);
    GGML_ABORT("%s", message);
}

pymtp_catch_asserts::pymtp_catch_asserts() {
    if (g_n_catching++ == 0) {
        g_failed[0] = '\0';
    }
}

pymtp_catch_asserts::~pymtp_catch_asserts() {
    --g_n_catching;
}

const char * pymtp_catch_asserts::failed() const {
    return g_failed;
}

// --- interface

int32_t pymtp_log_show(int32_t level) {
    return pymtp_guard([&] {
        g_shown_from = level;
        llama_log_set(log_receive, nullptr);
        ggml_set_abort_callback(on_abort);
    });
}

const char * pymtp_log_take(void) {
    static thread_local std::string taken;

    return pymtp_guard_or("", [] {
        const std::lock_guard<std::mutex> lock(g_mutex);
        taken.swap(g_kept);
        g_kept.clear();
        return taken.c_str();
    });
}

int32_t pymtp_exit_on_abort(void) {
    return pymtp_guard([&] {
        g_exits = true;
        ggml_set_abort_callback(on_abort);
    });
}
