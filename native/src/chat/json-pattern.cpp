#include "json-pattern.h"

#include "unicode.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <vector>

// the characters that JSON escapes by name, and what follows the backslash there
static constexpr struct {
    uint32_t     code;
    const char * written;
} JSON_ESCAPES[] = {
    { '"', "\"" }, { '\\', "\\\\" }, { '\b', "b" }, { '\f', "f" }, { '\n', "n" }, { '\r', "r" }, { '\t', "t" },
};

bool json_is_plain(uint32_t code) {
    return code >= 0x20 && code != '"' && code != '\\';
}

std::string json_in_class(uint32_t code) {
    if (code == '-') {
        return "\\-";
    }
    if (code < 0x20 || strchr("\"\\[]^", (int) std::min(code, (uint32_t) 'a'))) {
        char text[8];
        snprintf(text, sizeof(text), "\\x%02X", code);
        return text;
    }
    return common_unicode_cpt_to_utf8(code);
}

namespace {

constexpr uint32_t CODE_MAX = 0x10FFFF;

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

    // The character at pos, which may be escaped. where: for what is refused
    uint32_t read(const char * where) {
        if (pattern[pos] != '\\') {
            const auto found = common_parse_utf8_codepoint(pattern, pos);
            if (found.status != utf8_parse_result::SUCCESS) {
                refuse("bytes that are no UTF-8");
            }
            pos += found.bytes_consumed;
            return found.codepoint;
        }
        static const std::string same   = "\\\"[]-^$.()|{}*+?";
        const std::string        escape = pattern.substr(pos, 2);
        const char               next   = escape.size() > 1 ? escape[1] : '\0';
        const size_t             n_hex  = next == 'x' ? 2 : next == 'u' ? 4 : next == 'U' ? 8 : 0;
        const std::string        hex    = pattern.substr(std::min(pos + 2, pattern.size()), n_hex);
        pos += escape.size() + hex.size();
        if (next == 't' || next == 'r' || next == 'n') {
            return next == 't' ? '\t' : next == 'r' ? '\r' : '\n';
        }
        if (next && same.find(next) != std::string::npos) {
            return next;
        }
        if (n_hex == 0 || hex.size() < n_hex || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
            refuse("unsupported escape" + (where + (": " + escape)));
        }
        const uint32_t code = std::stoul(hex, nullptr, 16);
        if (code > CODE_MAX || (code >= 0xD800 && code <= 0xDFFF)) {
            refuse("half of a surrogate pair, or a code beyond Unicode");
        }
        return code;
    }

    // as it is, but in a group where it is more than a byte and is repeated
    void write_character() {
        const size_t   begin = pos;
        const uint32_t code  = read("");
        std::string    text  = pattern.substr(begin, pos - begin);
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
            const uint32_t first = read(" in character class");
            uint32_t       last  = first;
            if (pos + 1 < pattern.size() && pattern[pos] == '-' && pattern[pos + 1] != ']') {
                ++pos;
                last = read(" in character class");
            }
            if (last < first) {
                refuse("a range from a character to one before it");
            }
            ranges.push_back({ first, last });
        }
        if (pos >= pattern.size()) {
            result += pattern.substr(begin); // has no end
            return;
        }
        ++pos;
        write_any_of(excludes ? all_but(ranges) : ranges);
    }

    static std::vector<code_range> all_but(std::vector<code_range> ranges) {
        std::sort(ranges.begin(), ranges.end(), [](const auto & a, const auto & b) { return a.first < b.first; });
        ranges.push_back({ CODE_MAX + 1, CODE_MAX + 1 });
        std::vector<code_range> res;
        uint32_t                next = 0;
        for (const auto & range : ranges) {
            if (range.first > next) {
                res.push_back({ next, range.first - 1 });
            }
            next = std::max(next, range.last + 1);
        }
        return res;
    }

    void write_any_of(const std::vector<code_range> & ranges) {
        static constexpr code_range PLAIN[] = { { ' ', '!' }, { '#', '[' }, { ']', CODE_MAX } };

        std::string plain;
        std::string escaped;
        for (const auto & range : ranges) {
            for (const auto & part : PLAIN) {
                const uint32_t first = std::max(range.first, part.first);
                const uint32_t last  = std::min(range.last, part.last);
                if (first <= last) {
                    plain += json_in_class(first) + (last > first ? "-" + json_in_class(last) : "");
                }
            }
            for (const auto & one : JSON_ESCAPES) {
                escaped += range.first <= one.code && one.code <= range.last ? one.written : "";
            }
        }
        if (plain.empty() && escaped.empty()) {
            refuse("a class in which there is nothing, or control characters without names");
        }
        plain   = plain.empty() ? "" : "[" + plain + "]";
        escaped = escaped.empty() ? "" : "\\\\[" + escaped + "]";
        result += escaped.empty() ? plain : "(?:" + plain + (plain.empty() ? "" : "|") + escaped + ")";
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
