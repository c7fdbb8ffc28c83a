#pragma once

// What callers hold of our objects. A handle is a number that is never used twice, in the guise of a pointer: one that
// was freed, or that never was one, is found out instead of followed. Calls on one object from several threads are
// queued, and freeing an object waits for the call that is under way. Owns the objects; knows nothing of what they are.
//
// A class that callers hold names itself: static constexpr const char * what = "session".

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

// thrown where arguments do not fit; the message is set
struct pymtp_refused {};

// Ends an entry with PYMTP_INVALID and this message.
[[noreturn]] void pymtp_refuse(const char * format, ...);

// never the same twice
uintptr_t pymtp_next_handle();

// Has a table take part in forks: these run before a fork, and after it in both processes.
void pymtp_at_fork(void (*before)(), void (*in_parent)(), void (*in_child)());

template <typename T> struct pymtp_place {
    std::recursive_mutex mutex;
    std::unique_ptr<T>   object; // nullptr: it was freed
};

template <typename T> class pymtp_handles {
  public:
    using place = pymtp_place<T>;

    static T * add(std::unique_ptr<T> object) {
        const auto made = std::make_shared<place>();
        made->object    = std::move(object);

        const std::lock_guard<std::mutex> lock(all().mutex);

        const uintptr_t handle = pymtp_next_handle();
        all().places.emplace(handle, made);
        return (T *) handle;
    }

    // nullptr for an invalid handle
    static std::shared_ptr<place> find(const T * handle) {
        const std::lock_guard<std::mutex> lock(all().mutex);

        const auto found = all().places.find((uintptr_t) handle);
        return found == all().places.end() ? nullptr : found->second;
    }

    // Frees the object after the call that is under way. Nothing happens if the handle is invalid.
    static void free(const T * handle) noexcept {
        try {
            const auto freed = take(handle);
            if (freed) {
                const std::lock_guard<std::recursive_mutex> lock(freed->mutex);
                freed->object.reset();
            }
        } catch (...) {
            // the object stays: it cannot be reached any more
        }
    }

  private:
    std::mutex                                            mutex;
    std::unordered_map<uintptr_t, std::shared_ptr<place>> places;

    // Never destroyed: threads may be in a call while the process ends.
    static pymtp_handles & all() {
        static pymtp_handles & handles = create();
        return handles;
    }

    static pymtp_handles & create() {
        static pymtp_handles * made = new pymtp_handles;
        pymtp_at_fork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                      [] {
                          made->drop_places_in_use();
                          made->mutex.unlock();
                      });
        return *made;
    }

    static std::shared_ptr<place> take(const T * handle) {
        const std::lock_guard<std::mutex> lock(all().mutex);

        const auto found = all().places.find((uintptr_t) handle);
        if (found == all().places.end()) {
            return nullptr;
        }
        const auto res = found->second;
        all().places.erase(found);
        return res;
    }

    // In the child of a fork: threads that were in a call are not there, so nothing is known of these objects. They
    // stay where they are, unreachable.
    void drop_places_in_use() {
        for (auto it = places.begin(); it != places.end();) {
            auto & one = *it->second;
            if (one.mutex.try_lock()) {
                one.mutex.unlock();
                ++it;
            } else {
                new std::shared_ptr<place>(it->second);
                it = places.erase(it);
            }
        }
    }
};

// An object for the length of a call. Throws pymtp_refused if the handle is invalid.
template <typename T> class pymtp_hold {
  public:
    explicit pymtp_hold(const T * handle) : place(found(handle)), lock(place->mutex) {
        if (!place->object) {
            refuse();
        }
    }

    T & operator*() const { return *place->object; }

    T * operator->() const { return place->object.get(); }

  private:
    std::shared_ptr<pymtp_place<T>>        place;
    std::unique_lock<std::recursive_mutex> lock;

    static std::shared_ptr<pymtp_place<T>> found(const T * handle) {
        auto res = pymtp_handles<T>::find(handle);
        if (!res) {
            refuse();
        }
        return res;
    }

    [[noreturn]] static void refuse() { pymtp_refuse("this is no %s: it was freed, or never made", T::what); }
};

// Two objects of a kind, in the same order in all threads.
template <typename T> class pymtp_hold_both {
  public:
    pymtp_hold_both(const T * one, const T * other) :
        is_ordered(one <= other), low(is_ordered ? one : other), high(is_ordered ? other : one) {}

    T & one() const { return is_ordered ? *low : *high; }

    T & other() const { return is_ordered ? *high : *low; }

  private:
    const bool          is_ordered;
    const pymtp_hold<T> low;
    const pymtp_hold<T> high;
};
