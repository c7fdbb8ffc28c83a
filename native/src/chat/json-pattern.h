#pragma once

// What JSON schemas say of the text of strings, for grammars, which see how JSON writes it: quotes, backslashes and
// control characters are escaped there.

#include <cstdint>
#include <string>

// The expression of what JSON writes for the texts of a pattern, both without ^ and $. Dots, and what is no expression,
// are left to the converter. Throws std::invalid_argument for what has no such form.
std::string json_pattern(const std::string & pattern);

// Whether JSON writes a character as it is; and a character as classes of grammars have it.
bool        json_is_plain(uint32_t code);
std::string json_in_class(uint32_t code);
