// Messages of failures, and the table of handles.

#include "guard.h"

#include <cstdarg>
#include <cstdio>
#include <unordered_map>

#ifndef _WIN32
#    include <pthread.h>
#endif

static thread_local char g_error[1024];

void pymtp_set_error(const char * why) {
    snprintf(g_error, sizeof(g_error), "%s", why);
}

void pymtp_fail(pymtp_status status, const char * format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(g_error, sizeof(g_error), format, args);
    va_end(args);
    throw pymtp_failure{ status };
}

const char * pymtp_error_message(void) {
    return g_error;
}

// --- handles

namespace {

struct handle_table {
    std::mutex mutex;
    uintptr_t  next = 64; // multiples of it, so that they look like pointers to whoever prints them

    std::unordered_map<uintptr_t, std::shared_ptr<pymtp_place>> places;

    handle_table() {
#ifndef _WIN32
        pthread_atfork([] { all().mutex.lock(); }, [] { all().mutex.unlock(); },
                       [] {
                           all().drop_places_in_use();
                           all().mutex.unlock();
                       });
#endif
    }

    // Never destroyed: threads may be in a call while the process ends.
    static handle_table & all() {
        static handle_table & table = *new handle_table;
        return table;
    }

    // In the child of a fork: threads that were in a call are not there, so nothing is known of these objects. They
    // stay where they are, unreachable.
    void drop_places_in_use() {
        for (auto it = places.begin(); it != places.end();) {
            if (it->second->mutex.try_lock()) {
                it->second->mutex.unlock();
                ++it;
            } else {
                new std::shared_ptr<pymtp_place>(it->second);
                it = places.erase(it);
            }
        }
    }
};

} // namespace

void * pymtp_add_handle(std::shared_ptr<void> object, const void * kind) {
    const auto made = std::make_shared<pymtp_place>();
    made->object    = std::move(object);
    made->kind      = kind;

    auto &                            table = handle_table::all();
    const std::lock_guard<std::mutex> lock(table.mutex);
    table.places.emplace(table.next, made);
    table.next += 64;
    return (void *) (table.next - 64);
}

std::shared_ptr<pymtp_place> pymtp_find_handle(const void * handle, const void * kind) {
    auto &                            table = handle_table::all();
    const std::lock_guard<std::mutex> lock(table.mutex);

    const auto found = table.places.find((uintptr_t) handle);
    return found == table.places.end() || found->second->kind != kind ? nullptr : found->second;
}

void pymtp_free(void * handle) {
    pymtp_guard([&] {
        auto &                       table = handle_table::all();
        std::shared_ptr<pymtp_place> freed;
        {
            const std::lock_guard<std::mutex> lock(table.mutex);
            const auto                        found = table.places.find((uintptr_t) handle);
            if (found == table.places.end()) {
                return;
            }
            freed = found->second;
            table.places.erase(found);
        }
        const std::lock_guard<std::recursive_mutex> lock(freed->mutex);
        freed->object.reset();
    });
}
