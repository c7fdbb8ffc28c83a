#pragma once

// What JSON schemas say of the text of strings, for grammars, which see how JSON writes it: quotes, backslashes and
// control characters are escaped there. And of the bounds of numbers.

#include "json.h"

#include <cstdint>
#include <sstream>
#include <string>

// The expression of what JSON writes for the texts of a pattern, both without ^ and $. Dots, and what is no expression,
// are left to the converter. Throws std::invalid_argument for what has no such form.
std::string json_pattern(const std::string & pattern);

// Whether JSON writes a character as it is; and a character as classes of grammars have it.
bool        json_is_plain(uint32_t code);
std::string json_in_class(uint32_t code);

// The pattern of strings of a format that llama.cpp does not know: email, ipv4 or uri; else empty.
std::string json_format_pattern(const common_json & schema);

// The rule of a grammar for numbers within the bounds of a schema, those that are whole; empty if it has none.
std::string json_number_rule(const common_json & schema);

// A comment of a grammar that names what of a schema it does not follow: pymtp/chat/schema.py reads it.
std::string json_note(std::string what);

// llama.cpp's own: writes the rule of whole numbers from one to another; the least and the greatest stand for no bound.
void build_min_max_int(int64_t min_value, int64_t max_value, std::stringstream & out, int decimals_left = 16,
                       bool top_level = true);
