#pragma once

// How the engine ends what cannot go on: whoever called it catches the exception, and says what was asked for.

#include <stdexcept>

inline void mtp_refuse_if(bool is_wrong, const char * why) {
    if (is_wrong) {
        throw std::runtime_error(why);
    }
}
