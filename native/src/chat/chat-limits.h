#pragma once

// A chat template is a program that comes with a model file, and JSON schemas come with requests. While a `chat_limits`
// lives, what llama.cpp takes of stack, memory and time for them on this thread is bounded: its runtime of templates, its
// parser of JSON and its converter of schemas (patches) call the functions here, which throw. Time is counted, in steps,
// so that the same is refused everywhere. Knows sizes; nothing of templates. Without a `chat_limits` nothing is bounded.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

class chat_limits {
  public:
    static constexpr int64_t STACK_BYTES_MAX = 1 << 20;   // threads of Python have 8 MiB with glibc
    static constexpr int64_t VALUE_BYTES_MAX = 256 << 20; // of all values at a time
    static constexpr int64_t TEXT_BYTES_MAX  = 32 << 20;  // of what one statement puts together
    static constexpr int32_t NESTING_MAX     = 500;       // statements inside of each other, or arrays of JSON

    // n_bytes: how long the template, the request or the schema is
    explicit chat_limits(size_t n_bytes);
    ~chat_limits();
    chat_limits(const chat_limits &)             = delete;
    chat_limits & operator=(const chat_limits &) = delete;

    // templates may read all messages again for each: steps for n of them
    void allow_messages(size_t n);

    // that the last limits of this thread took, after their end
    inline static thread_local int64_t n_steps = 0;

    // wherever something calls itself, or takes long: a step, and one more for each 64 bytes that it looks at
    static void step(size_t n_bytes = 0);

    // the same with a quarter of the stack: before values are hashed, which cannot throw
    static void step_before_hash();

    // before n_sought bytes are sought in n_bytes, from each of these on
    static void step_before_find(size_t n_bytes, size_t n_sought);

    // before JSON is parsed
    static void check_json(const std::string & text);

    // a statement adds n_bytes to what it puts together
    static void grow(size_t n_bytes);

    // a stream holds n_bytes
    static void check_size(int64_t n_bytes);

    // a statement has ended
    static void end_step();

    // how deeply a statement would be nested that is made of these parts
    template <typename... Parts> static int32_t nesting(const Parts &... parts) {
        const int32_t n = 1 + std::max({ 0, nesting_of(parts)... });
        check_nesting(n);
        return n;
    }

    // Frees values one after the other, where their destructors would call each other as deeply as they are nested.
    template <typename T> static void bury(std::vector<T> values) noexcept {
        for (auto & value : values) {
            bury_one(std::move(value));
        }
        free_buried();
    }

  private:
    int64_t bytes_max;

    static void check_nesting(int32_t n);
    static void bury_one(std::shared_ptr<void> value) noexcept;

    template <typename T> static void bury_one(std::pair<T, T> values) noexcept {
        bury_one(std::move(values.first));
        bury_one(std::move(values.second));
    }

    static void free_buried() noexcept;

    template <typename T> static int32_t nesting_of(const T &) { return 0; }

    template <typename T> static auto nesting_of(const std::unique_ptr<T> & part) -> decltype(part->nesting) {
        return part ? part->nesting : 0;
    }

    template <typename T> static int32_t nesting_of(const std::vector<T> & parts) {
        int32_t n = 0;
        for (const auto & part : parts) {
            n = std::max(n, nesting_of(part));
        }
        return n;
    }

    template <typename T> static int32_t nesting_of(const std::pair<T, T> & parts) {
        return std::max(nesting_of(parts.first), nesting_of(parts.second));
    }
};

// What a value of the runtime derives from: counted while it lives. What still lives at the end of the limits holds
// itself, and lets go then.
class chat_value {
  public:
    chat_value();

    chat_value(const chat_value &) : chat_value() {}

    chat_value & operator=(const chat_value &) { return *this; }

    virtual ~chat_value() { unlink(); }

    virtual void drop_values() noexcept = 0;

    // what it holds beside itself
    void set_bytes(int64_t n_bytes);

  private:
    friend class chat_limits;

    chat_value * previous  = nullptr;
    chat_value * next      = nullptr;
    int64_t      n_bytes   = 0;
    bool         is_linked = false;

    void hold_bytes(int64_t n_bytes);
    void unlink() noexcept;
};
