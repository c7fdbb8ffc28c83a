#pragma once

// How the engine ends what cannot go on: whoever called it catches the exception, and says what was asked for.

#include <stdexcept>

// why: a text, or a std::string
template <typename T> void mtp_refuse_if(bool is_wrong, const T & why) {
    if (is_wrong) {
        throw std::runtime_error(why);
    }
}
