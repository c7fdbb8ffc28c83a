#include "chat-limits.h"

#include <cstdlib>
#include <stdexcept>

static constexpr int64_t BYTES_OF_A_VALUE = 256;

// A step is 10 to 50 ns on a core of an AMD EPYC: these are 0.3 s. Of llama.cpp's templates ByteDance-Seed-OSS takes most
// to be analysed, 302,262, and Kimi-K3 for a short chat with a tool, 72,102; of the schemas of its tests none takes 500.
// tests/test_counted_work.py holds all of them to a twentieth. Long chats need more: most templates 3,000 steps a message,
// and Gemma 4's reads all messages again for each, 200 steps for a pair of them.
static constexpr int64_t STEPS_MAX          = 8 * 1000 * 1000;
static constexpr int64_t STEPS_OF_A_BYTE    = 128;               // of the request
static constexpr int64_t LONG_STEPS_MAX     = 32 * 1000 * 1000;  // however long it is
static constexpr int64_t STEPS_OF_A_MESSAGE = 256 * 1000;
static constexpr int64_t CHAT_STEPS_MAX     = 256 * 1000 * 1000; // however many messages
static constexpr int64_t BYTES_OF_A_STEP    = 64;                // copied, compared, hashed

struct limits_state {
    bool         is_on       = false;
    intptr_t     stack       = 0; // where it was when the limits began
    int64_t      bytes_left  = 0; // that may be looked at
    int64_t      text_bytes  = 0;
    int64_t      value_bytes = 0;
    chat_value * first       = nullptr;
};

static thread_local limits_state                       state;
static thread_local std::vector<std::shared_ptr<void>> buried;
static thread_local bool                               is_freeing = false;

static intptr_t stack_now() {
    const volatile char here = 0;
    return (intptr_t) &here;
}

chat_limits::chat_limits(size_t n_bytes) :
    bytes_max(BYTES_OF_A_STEP * std::min(STEPS_MAX + STEPS_OF_A_BYTE * (int64_t) n_bytes, LONG_STEPS_MAX)) {
    state            = {};
    state.is_on      = true;
    state.stack      = stack_now();
    state.bytes_left = bytes_max;
}

void chat_limits::allow_messages(size_t n) {
    const int64_t n_steps_max = bytes_max / BYTES_OF_A_STEP;
    const int64_t more        = std::min(STEPS_OF_A_MESSAGE * (int64_t) n, CHAT_STEPS_MAX - n_steps_max);
    bytes_max += more * BYTES_OF_A_STEP;
    state.bytes_left += more * BYTES_OF_A_STEP;
}

chat_limits::~chat_limits() {
    while (state.first) {
        chat_value * value = state.first;
        value->unlink();
        value->drop_values(); // may free it
    }
    n_steps = (bytes_max - state.bytes_left) / BYTES_OF_A_STEP;
    state   = {};
}

static void refuse_if(bool is_wrong, const char * why) {
    if (state.is_on && is_wrong) {
        throw std::runtime_error(why);
    }
}

static void look_at(int64_t n_bytes) {
    state.bytes_left -= n_bytes;
    refuse_if(state.bytes_left < 0, "it takes too many steps"); // every further step fails too
}

static void step_within(int64_t n_stack, int64_t n_bytes) {
    refuse_if(std::abs(state.stack - stack_now()) > n_stack, "nested too deeply, or without end");
    look_at(BYTES_OF_A_STEP + n_bytes);
}

void chat_limits::step(size_t n_bytes) {
    step_within(STACK_BYTES_MAX, n_bytes);
}

void chat_limits::step_before_hash() {
    step_within(STACK_BYTES_MAX / 4, 0);
}

void chat_limits::step_before_find(size_t n_bytes, size_t n_sought) {
    step(n_bytes < n_sought ? 0 : (n_bytes - n_sought + 1) * (8 + n_sought / 16));
}

void chat_limits::check_json(const std::string & text) {
    if (!state.is_on) {
        return;
    }
    step(text.size());
    std::vector<size_t> n_keys = { 0 }; // of the objects in each other
    bool                quoted = false;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (quoted && c == '\\') {
            ++i;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (!quoted && (c == '{' || c == '[')) {
            n_keys.push_back(0);
            check_nesting(n_keys.size());
        } else if (!quoted && (c == '}' || c == ']') && n_keys.size() > 1) {
            n_keys.pop_back();
        } else if (!quoted && c == ':') {
            step(16 * n_keys.back()++); // a key is compared with each before it
        }
    }
}

void chat_limits::grow(size_t n_bytes) {
    state.text_bytes += std::min<size_t>(n_bytes, TEXT_BYTES_MAX + 1);
    check_size(state.text_bytes);
    look_at(n_bytes);
}

void chat_limits::check_size(int64_t n_bytes) {
    if (state.is_on && n_bytes > TEXT_BYTES_MAX) {
        state.text_bytes = 0;
        throw std::runtime_error("it makes a text of more than 32 MiB");
    }
}

void chat_limits::end_step() {
    state.text_bytes = 0;
}

void chat_limits::check_nesting(int32_t n) {
    refuse_if(n > NESTING_MAX, "nested too deeply, or without end");
}

void chat_limits::bury_one(std::shared_ptr<void> value) noexcept {
    try {
        buried.push_back(std::move(value));
    } catch (...) { // no memory for it: it is freed here
    }
}

void chat_limits::free_buried() noexcept {
    if (is_freeing) {
        return; // whoever does takes these as well
    }
    is_freeing = true;
    while (!buried.empty()) {
        const auto value = std::move(buried.back());
        buried.pop_back();
    }
    is_freeing = false;
}

chat_value::chat_value() {
    if (!state.is_on) {
        return;
    }
    chat_limits::step();
    hold_bytes(BYTES_OF_A_VALUE);
    next = state.first;
    if (next) {
        next->previous = this;
    }
    state.first = this;
    is_linked   = true;
}

void chat_value::set_bytes(int64_t n) {
    chat_limits::step(std::max<int64_t>(n - n_bytes, 0));
    hold_bytes(n);
}

void chat_value::hold_bytes(int64_t n) {
    refuse_if(state.value_bytes + n - n_bytes > chat_limits::VALUE_BYTES_MAX, "it takes more than 256 MiB of memory");
    state.value_bytes += n - n_bytes;
    n_bytes = n;
}

void chat_value::unlink() noexcept {
    if (!is_linked) {
        return;
    }
    state.value_bytes -= n_bytes;
    (previous ? previous->next : state.first) = next;
    if (next) {
        next->previous = previous;
    }
    is_linked = false;
}
