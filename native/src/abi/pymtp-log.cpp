// What llama.cpp says while it works: kept for error messages, shown on request, and the end of the process when it
// gives up. Native, because Python that runs inside a callback of llama.cpp would swallow a Ctrl-C.

#include "ggml.h"
#include "guard.h"
#include "llama.h"
#include "pymtp.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
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

static void log_exit(const char * message) {
    fprintf(stderr, "pymtp: llama.cpp gave up: %s; the model file may be damaged, or memory may have run out\n",
            message);
    fflush(stderr);
    _Exit(1);
}

void pymtp_log_show(int32_t level) {
    g_shown_from = level;
    llama_log_set(log_receive, nullptr);
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

void pymtp_exit_on_abort(void) {
    ggml_set_abort_callback(log_exit);
}
