#include "chat-limits.h"

#include <cstdlib>
#include <ctime>
#include <stdexcept>

static constexpr int64_t BYTES_OF_A_VALUE = 256;
static constexpr int32_t STEPS_OF_A_LOOK  = 256; // at the clock

struct limits_state {
    bool         is_on       = false;
    intptr_t     stack       = 0; // where it was when the limits began
    double       end         = 0; // seconds of the thread's clock
    int32_t      n_steps     = 0;
    int64_t      text_bytes  = 0;
    int64_t      value_bytes = 0;
    chat_value * first       = nullptr;
};

static thread_local limits_state                       state;
static thread_local std::vector<std::shared_ptr<void>> buried;
static thread_local bool                               is_freeing = false;

static double thread_seconds() {
#ifdef CLOCK_THREAD_CPUTIME_ID
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
#else
    return (double) clock() / CLOCKS_PER_SEC;
#endif
}

static intptr_t stack_now() {
    return (intptr_t) __builtin_frame_address(0);
}

chat_limits::chat_limits() {
    state       = {};
    state.is_on = true;
    state.stack = stack_now();
    state.end   = thread_seconds() + SECONDS_MAX;
}

chat_limits::~chat_limits() {
    while (state.first) {
        chat_value * value = state.first;
        value->unlink();
        value->drop_values(); // may free it
    }
    state = {};
}

static void check_stack(int64_t n_max) {
    if (std::abs(state.stack - stack_now()) > n_max) {
        throw std::runtime_error("nested too deeply, or without end");
    }
}

static void step_within(int64_t n_stack) {
    if (!state.is_on) {
        return;
    }
    check_stack(n_stack);
    if (++state.n_steps == STEPS_OF_A_LOOK) {
        state.n_steps = 0;
        if (thread_seconds() > state.end) {
            state.n_steps = STEPS_OF_A_LOOK - 1; // every further step fails at once
            throw std::runtime_error("it takes more than 10 seconds");
        }
    }
}

void chat_limits::step() {
    step_within(STACK_BYTES_MAX);
}

void chat_limits::step_before_hash() {
    step_within(STACK_BYTES_MAX / 4);
}

void chat_limits::grow(size_t n_bytes) {
    state.text_bytes += std::min<size_t>(n_bytes, TEXT_BYTES_MAX + 1);
    check_size(state.text_bytes);
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
    if (state.is_on && n > NESTING_MAX) {
        throw std::runtime_error("nested too deeply, or without end");
    }
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
    set_bytes(BYTES_OF_A_VALUE);
    next = state.first;
    if (next) {
        next->previous = this;
    }
    state.first = this;
    is_linked   = true;
}

chat_value::~chat_value() {
    unlink();
}

void chat_value::set_bytes(int64_t n) {
    if (state.is_on && state.value_bytes + n - n_bytes > chat_limits::VALUE_BYTES_MAX) {
        throw std::runtime_error("it takes more than 256 MiB of memory");
    }
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
