#include "json-pattern.h"

#include "unicode.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <vector>

// the characters that a class or a dot may stand for and JSON escapes, and what follows the backslash there
static constexpr struct {
    uint32_t     code;
    const char * written;
} JSON_ESCAPES[] = {
    { '"', "\"" }, { '\\', "\\\\" }, { '\b', "b" }, { '\f', "f" }, { '\n', "n" }, { '\r', "r" }, { '\t', "t" },
};

static const char * const NOT_PLAIN = "\"\\\\\\x00-\\x1F"; // in a class

bool json_is_plain(uint32_t code) {
    return code >= 0x20 && code != '"' && code != '\\';
}

std::string json_in_class(uint32_t code) {
    if (code < 0x20 || strchr("\"\\[]^-", (int) std::min(code, (uint32_t) 'a'))) {
        char text[8];
        snprintf(text, sizeof(text), "\\x%02X", code);
        return text;
    }
    return common_unicode_cpt_to_utf8(code);
}

namespace {

[[noreturn]] void refuse(const std::string & what) {
    throw std::invalid_argument(what);
}

struct code_range {
    uint32_t first;
    uint32_t last;
};

class pattern_writer {
  public:
    explicit pattern_writer(const std::string & pattern) : pattern(pattern) {}

    std::string write() {
        while (pos < pattern.size()) {
            const char c = pattern[pos];
            if (c == '[') {
                write_class();
            } else if (c == '(' && pattern.compare(pos, 3, "(?:") == 0) {
                copy(3);
            } else if (is_quantifier(pos)) {
                write_quantifier();
            } else if (strchr("().|^$]}", c)) {
                copy(1);
            } else {
                write_character();
            }
        }
        return result;
    }

  private:
    const std::string & pattern;
    std::string         result;
    size_t              pos = 0;

    void copy(size_t n) {
        result += pattern.substr(pos, n);
        pos += n;
    }

    bool is_quantifier(size_t at) const { return at < pattern.size() && strchr("*+?{", pattern[at]); }

    void write_quantifier() {
        copy(pattern[pos] == '{' ? std::min(pattern.find('}', pos), pattern.size() - 1) - pos + 1 : 1);
        if (pos < pattern.size() && pattern[pos] == '?') {
            ++pos; // a lazy one matches the same whole texts
        }
        if (is_quantifier(pos)) {
            refuse("a repetition that is repeated");
        }
    }

    // The character at pos, which may be escaped. false: the converter does not know it either.
    bool read(uint32_t & code) {
        static const std::string same = "\\\"[]-^$.()|{}*+?";
        const size_t             n    = pattern.size() - pos;
        if (pattern[pos] != '\\') {
            const auto found = common_parse_utf8_codepoint(pattern, pos);
            if (found.status != utf8_parse_result::SUCCESS) {
                refuse("bytes that are no UTF-8");
            }
            pos += found.bytes_consumed;
            code = found.codepoint;
        } else if (n < 2) {
            return false;
        } else if (const char next = pattern[pos + 1]; strchr("trn", next)) {
            code = next == 't' ? '\t' : next == 'r' ? '\r' : '\n';
            pos += 2;
        } else if (same.find(next) != std::string::npos) {
            code = next;
            pos += 2;
        } else {
            const size_t n_hex = next == 'x' ? 2 : next == 'u' ? 4 : next == 'U' ? 8 : 0;
            if (n_hex == 0 || n < 2 + n_hex ||
                !std::all_of(
                    pattern.begin() + pos + 2, pattern.begin() + pos + 2 + n_hex,
                    [](unsigned char digit) { return isxdigit(digit); })) {
                return false;
            }
            code = std::stoul(pattern.substr(pos + 2, n_hex), nullptr, 16);
            pos += 2 + n_hex;
        }
        if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
            refuse("half of a surrogate pair, or a code beyond Unicode");
        }
        return true;
    }

    // as it is, but in a group where it is more than a byte and is repeated
    void write_character() {
        const size_t begin = pos;
        uint32_t     code;
        if (!read(code)) {
            refuse("unsupported escape: " + pattern.substr(pos, 2));
        }
        std::string text = pattern.substr(begin, pos - begin);
        if (!json_is_plain(code)) {
            const auto * const end = std::end(JSON_ESCAPES);
            const auto * const known =
                std::find_if(JSON_ESCAPES, end, [&](const auto & one) { return one.code == code; });
            char hex[8];
            snprintf(hex, sizeof(hex), "u%04x", code);
            text = std::string("\\\\") + (known != end ? known->written : hex);
        }
        result += text.size() > 1 && is_quantifier(pos) ? "(?:" + text + ")" : text;
    }

    void write_class() {
        const size_t begin    = pos++;
        const bool   excludes = pos < pattern.size() && pattern[pos] == '^';
        pos += excludes;

        std::vector<code_range> ranges;
        while (pos < pattern.size() && pattern[pos] != ']') {
            code_range range;
            if (!read(range.first)) {
                refuse("unsupported escape in character class: " + pattern.substr(pos, 2));
            }
            range.last = range.first;
            if (pos + 1 < pattern.size() && pattern[pos] == '-' && pattern[pos + 1] != ']') {
                ++pos;
                if (!read(range.last)) {
                    refuse("unsupported escape in character class: " + pattern.substr(pos, 2));
                }
            }
            if (range.last < range.first) {
                refuse("a range from a character to one before it");
            }
            ranges.push_back(range);
        }
        if (pos >= pattern.size()) {
            result += pattern.substr(begin); // has no end
            return;
        }
        ++pos;
        if (excludes) {
            write_all_but(ranges);
        } else {
            write_any_of(ranges, pattern.substr(begin, pos - begin));
        }
    }

    static bool has(const std::vector<code_range> & ranges, uint32_t code) {
        return std::any_of(ranges.begin(), ranges.end(),
                           [&](const code_range & range) { return range.first <= code && code <= range.last; });
    }

    // of the characters that JSON escapes those that are among the ranges, or are not
    static std::string escapes(const std::vector<code_range> & ranges, bool among) {
        std::string res;
        for (const auto & one : JSON_ESCAPES) {
            res += has(ranges, one.code) == among ? one.written : "";
        }
        return res.empty() ? "" : "\\\\[" + res + "]";
    }

    static std::string in_class(const std::vector<code_range> & ranges) {
        std::string res;
        for (const auto & range : ranges) {
            res += json_in_class(range.first);
            res += range.last > range.first ? "-" + json_in_class(range.last) : "";
        }
        return res;
    }

    void write_all_but(const std::vector<code_range> & ranges) {
        const std::string written = escapes(ranges, false);
        result += "(?:[^" + (NOT_PLAIN + in_class(ranges)) + "]" + (written.empty() ? "" : "|" + written) + ")";
    }

    // text: the class as it is
    void write_any_of(const std::vector<code_range> & ranges, const std::string & text) {
        std::vector<code_range> plain;
        for (const auto & range : ranges) {
            uint32_t first = std::max(range.first, (uint32_t) 0x20);
            for (const uint32_t odd : { (uint32_t) '"', (uint32_t) '\\' }) {
                if (first <= odd && odd <= range.last) {
                    if (first < odd) {
                        plain.push_back({ first, odd - 1 });
                    }
                    first = odd + 1;
                }
            }
            if (first <= range.last) {
                plain.push_back({ first, range.last });
            }
        }
        const std::string written = escapes(ranges, true);
        if (written.empty() && !plain.empty()) {
            const bool same =
                std::none_of(ranges.begin(), ranges.end(), [](const auto & one) { return one.first < 0x20; });
            result += same ? text : "[" + in_class(plain) + "]";
        } else if (!written.empty()) {
            result += "(?:" + (plain.empty() ? "" : "[" + in_class(plain) + "]|") + written + ")";
        } else {
            refuse("a class in which there is nothing, or control characters without names");
        }
    }
};

} // namespace

std::string json_pattern(const std::string & pattern) {
    return pattern_writer(pattern).write();
}

std::string json_format_pattern(const common_json & schema) {
    static const struct {
        const char * format;
        const char * pattern;
    } patterns[] = {
        { "email", "^[a-zA-Z0-9_+-]+(\\.[a-zA-Z0-9_+-]+)*@([a-zA-Z0-9]+(-[a-zA-Z0-9]+)*\\.)+[a-zA-Z]{2,24}$" },
        { "ipv4", "^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])$" },
        { "uri", "^[a-z][a-z0-9+.-]*:[!#-;=?-Z_a-z~]+$" },
    };

    for (const auto & known : patterns) {
        if (schema.contains("format") && schema.at("format") == known.format) {
            return known.pattern;
        }
    }
    return "";
}

namespace {

constexpr int64_t WITHOUT_END = INT64_MAX;

struct bound {
    int64_t value;
    bool    is_exclusive;
};

} // namespace

static bound read_bound(const common_json & schema, const char * inclusive, const char * exclusive, int64_t missing) {
    for (const char * key : { inclusive, exclusive }) {
        if (schema.contains(key) && schema.at(key).is_number()) {
            const double value = schema.at(key).get<double>();
            if (value == std::floor(value) && std::abs(value) < 1e15) {
                return { (int64_t) value, key == exclusive };
            }
        }
    }
    return { missing, false };
}

// adds the alternatives of a rule for what follows a sign, none of it negative
static void write_numbers(bound least, bound most, const std::string & sign, std::string & rule) {
    const auto add = [&](const std::string & whole, const char * fraction) {
        rule += (rule.empty() ? "" : " | ") + sign + whole + fraction;
    };
    const auto literal = [](int64_t value) {
        return "\"" + std::to_string(value) + "\"";
    };
    if (least.is_exclusive && least.value < most.value) {
        add(literal(least.value), " \".\" [0-9]{0,15} [1-9]");
    }
    const int64_t from = least.value + least.is_exclusive;
    if (from < most.value) {
        std::stringstream range;
        build_min_max_int(from, most.value == WITHOUT_END ? WITHOUT_END : most.value - 1, range);
        add("(" + range.str() + ")", " (\".\" [0-9]{1,16})?");
    }
    if (from <= most.value && most.value != WITHOUT_END && !most.is_exclusive) {
        add(literal(most.value), " (\".\" \"0\"{1,16})?");
    }
}

std::string json_number_rule(const common_json & schema) {
    const bound least = read_bound(schema, "minimum", "exclusiveMinimum", -WITHOUT_END);
    const bound most  = read_bound(schema, "maximum", "exclusiveMaximum", WITHOUT_END);
    std::string rule;
    if (least.value == -WITHOUT_END && most.value == WITHOUT_END) {
        return rule;
    }
    const bound zero = { 0, false };
    if (least.value < 0) {
        write_numbers(most.value > 0 ? zero : bound{ -most.value, most.is_exclusive },
                      { -least.value, least.is_exclusive }, "\"-\" ", rule);
    }
    if (most.value >= 0) {
        write_numbers(least.value < 0 ? zero : least, most, "", rule);
    }
    return rule;
}

std::string json_note(std::string what) {
    std::replace_if(what.begin(), what.end(), [](unsigned char c) { return c < 0x20; }, ' ');
    return "# ignored: " + what + "\n";
}
