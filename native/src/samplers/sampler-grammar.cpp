#include "grammar-work.h"
#include "llama-grammar.h"
#include "sampler-rules.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

// llama.cpp's parser, and its search for left recursion, call themselves for what is nested
static constexpr size_t   TEXT_MAX    = 4 * 1024 * 1024;  // bytes
static constexpr int32_t  NESTED_MAX  = 200;              // parentheses in each other
static constexpr int32_t  CHAINED_MAX = 4000;             // rules that begin with each other
static constexpr uint64_t VISITS_MAX  = 10 * 1000 * 1000; // of rules and elements, in that search

// The end of what a quote or a bracket begins.
static const char * skip_to(const char * pos, char end) {
    while (*pos && *pos != end) {
        pos += pos[0] == '\\' && pos[1] ? 2 : 1;
    }
    return pos;
}

static const char * skip_space(const char * pos) {
    for (; *pos && strchr(" \t\r\n#", *pos); ++pos) {
        if (*pos == '#') {
            pos += strcspn(pos, "\r\n");
            if (!*pos) {
                break;
            }
        }
    }
    return pos;
}

// For {5,2} llama.cpp would make rules without end, as 2 - 5 is a very large number.
static void check_repetition(const char * pos) {
    char *       end   = nullptr;
    const auto   least = strtoull(skip_space(pos), &end, 10);
    const char * comma = skip_space(end);
    const char * digit = *comma == ',' ? skip_space(comma + 1) : "";
    if (*digit >= '0' && *digit <= '9' && strtoull(digit, nullptr, 10) < least) {
        throw std::invalid_argument("a repetition of at least " + std::to_string(least) + " and at most " +
                                    std::to_string(strtoull(digit, nullptr, 10)));
    }
}

static void check_text(const char * text) {
    int32_t n_open = 0;
    for (const char * pos = text; *pos; ++pos) {
        switch (*pos) {
            case '"':
                pos = skip_to(pos + 1, '"');
                break;
            case '[':
                pos = skip_to(pos + 1, ']');
                break;
            case '#':
                pos += strcspn(pos, "\r\n");
                break;
            case '{':
                check_repetition(pos + 1);
                break;
            case '(':
                ++n_open;
                break;
            case ')':
                --n_open;
                break;
        }
        if (n_open > NESTED_MAX) {
            throw std::invalid_argument("more than " + std::to_string(NESTED_MAX) + " parentheses in each other");
        }
        if (!*pos) {
            return;
        }
    }
}

// What llama_grammar_parser::parse does, which would write what is wrong to stderr.
static void parse(llama_grammar_parser & parser, const char * text) {
    for (const char * pos = skip_space(text); *pos;) {
        pos = parser.parse_rule(pos);
    }
    for (const auto & [name, id] : parser.symbol_ids) {
        if (id >= parser.rules.size() || parser.rules[id].empty()) {
            throw std::invalid_argument("Undefined rule identifier '" + name + "'");
        }
    }
    if (parser.rules.empty()) {
        throw std::invalid_argument("it is empty");
    }
    if (parser.symbol_ids.count("root") == 0) {
        throw std::invalid_argument("it does not contain a 'root' symbol");
    }
}

namespace {

// The rules that a rule can begin with, as llama.cpp searches them for left recursion: again and again where they are
// reached in several ways.
class first_rules {
  public:
    explicit first_rules(const llama_grammar_rules & rules) : rules(rules), n_visits(rules.size()) {
        for (const auto & rule : rules) {
            is_empty.push_back(may_be_empty(rule));
        }
    }

    // how many rules and elements the search from this one on visits
    uint64_t visits(size_t rule, int32_t n_before = 0) {
        if (n_visits[rule] == IN_PROGRESS) {
            throw std::invalid_argument("left recursion is not supported");
        }
        if (n_visits[rule] > 0) {
            return n_visits[rule];
        }
        if (n_before > CHAINED_MAX) {
            throw std::invalid_argument("more than " + std::to_string(CHAINED_MAX) +
                                        " rules that begin with each other");
        }
        n_visits[rule] = IN_PROGRESS;

        uint64_t n     = 1 + rules[rule].size() / 8;
        bool     first = true;
        for (const auto & element : rules[rule]) {
            const bool is_rule = element.type == LLAMA_GRETYPE_RULE_REF;
            if (is_rule && first) {
                n = std::min(n + visits(element.value, n_before + 1), VISITS_MAX + 1);
            }
            const bool is_end = element.type == LLAMA_GRETYPE_ALT || element.type == LLAMA_GRETYPE_END;
            first             = is_end || (is_rule && first && is_empty[element.value]);
        }
        return n_visits[rule] = n;
    }

  private:
    static constexpr uint64_t IN_PROGRESS = UINT64_MAX;

    const llama_grammar_rules & rules;
    std::vector<uint64_t>       n_visits; // 0: not known yet
    std::vector<bool>           is_empty;

    static bool may_be_empty(const llama_grammar_rule & rule) {
        bool at_start = true;
        for (const auto & element : rule) {
            const bool is_end = element.type == LLAMA_GRETYPE_ALT || element.type == LLAMA_GRETYPE_END;
            if (is_end && at_start) {
                return true;
            }
            at_start = is_end;
        }
        return false;
    }
};

} // namespace

static void check_rules(const llama_grammar_rules & rules) {
    first_rules first(rules);
    uint64_t    n_visits = 0;
    for (size_t rule = 0; rule < rules.size(); ++rule) {
        n_visits += first.visits(rule);
        if (n_visits > VISITS_MAX) {
            throw std::invalid_argument("its rules begin with each other in too many ways");
        }
    }
}

llama_sampler_ptr sampler_grammar(const llama_vocab * vocab, const char * text) {
    if (strlen(text) > TEXT_MAX) {
        throw std::invalid_argument("more than " + std::to_string(TEXT_MAX) + " bytes");
    }
    check_text(text);

    grammar_work::begin();
    llama_grammar_parser parser(vocab);
    try {
        parse(parser, text);
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & err) {
        // a token in it, and no vocabulary to find it in
        if (!vocab && strstr(err.what(), "no vocab") != nullptr) {
            return nullptr;
        }
        // all that follows belongs to the message
        throw std::invalid_argument(std::string(err.what(), strcspn(err.what(), "\r\n")));
    }
    check_rules(parser.rules);
    if (!vocab) {
        return nullptr;
    }
    llama_sampler_ptr res(llama_sampler_init_grammar(vocab, text, "root"));
    if (!res) {
        throw std::invalid_argument("llama.cpp refuses it");
    }
    return res;
}
