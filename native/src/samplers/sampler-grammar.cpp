#include "grammar-work.h"
#include "llama-grammar.h"
#include "sampler-rules.h"

#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

static constexpr size_t  TEXT_MAX   = 4 * 1024 * 1024; // bytes
static constexpr int32_t NESTED_MAX = 200;             // parentheses in each other: the parser calls itself for them

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
    // what it refuses of a grammar that can be parsed
    static constexpr const char * REFUSED = "left recursion is not supported";
    if (!vocab) {
        const std::unique_ptr<llama_grammar, void (*)(llama_grammar *)> made(
            llama_grammar_init_impl(nullptr, text, "root", false, nullptr, 0, nullptr, 0), llama_grammar_free_impl);
        if (!made) {
            throw std::invalid_argument(REFUSED);
        }
        return nullptr;
    }
    llama_sampler_ptr res(llama_sampler_init_grammar(vocab, text, "root"));
    if (!res) {
        throw std::invalid_argument(REFUSED);
    }
    return res;
}
