// The few functions that llama.cpp's chat code calls outside of it: strings, tokens, messages for the log. llama.cpp
// has them in files that need its downloads, samplers and command lines besides. Messages go where those of libllama
// go, not to a thread that prints them.

#include "common.h"
#include "log.h"
#include "sampling.h"

#include <cstdarg>
#include <cstdio>

std::string string_join(const std::vector<std::string> & values, const std::string & separator) {
    std::string joined;
    for (size_t i = 0; i < values.size(); ++i) {
        joined += i > 0 ? separator + values[i] : values[i];
    }
    return joined;
}

std::vector<std::string> string_split(const std::string & str, const std::string & delimiter) {
    std::vector<std::string> parts;
    size_t                   begin = 0;
    for (size_t end; (end = str.find(delimiter, begin)) != std::string::npos; begin = end + delimiter.size()) {
        parts.push_back(str.substr(begin, end - begin));
    }
    parts.push_back(str.substr(begin));
    return parts;
}

std::string string_repeat(const std::string & str, size_t n) {
    std::string repeated;
    repeated.reserve(str.size() * n);
    while (n-- > 0) {
        repeated += str;
    }
    return repeated;
}

void string_replace_all(std::string & s, const std::string & search, const std::string & replace) {
    if (!search.empty()) {
        s = string_join(string_split(s, search), replace);
    }
}

std::vector<llama_token> common_tokenize(const llama_vocab * vocab, const std::string & text, bool add_special,
                                         bool parse_special) {
    std::vector<llama_token> tokens(text.size() + 2);
    const auto               tokenize = [&] {
        return llama_tokenize(vocab, text.data(), text.size(), tokens.data(), tokens.size(), add_special,
                              parse_special);
    };
    int32_t n = tokenize();
    if (n == INT32_MIN) {
        throw std::length_error("a text of more tokens than can be counted");
    }
    if (n < 0) {
        tokens.resize(-n);
        n = tokenize();
    }
    tokens.resize(n);
    return tokens;
}

std::string common_token_to_piece(const llama_vocab * vocab, llama_token token, bool special) {
    std::string   piece(64, '\0');
    const int32_t n = llama_token_to_piece(vocab, token, &piece[0], piece.size(), 0, special);
    piece.resize(std::abs(n));
    if (n < 0) {
        llama_token_to_piece(vocab, token, &piece[0], piece.size(), 0, special);
    }
    return piece;
}

// Called by llama.cpp's session of a chat alone, which tokenizes triggers; pymtp does that by itself.

void common_sampling_add_preserved_tokens(common_params_sampling &, const llama_vocab *,
                                          const std::vector<std::string> &) {
    throw std::logic_error("chat sessions are not built");
}

void common_sampling_add_grammar_triggers(common_params_sampling &, const llama_vocab *,
                                          std::vector<common_grammar_trigger>) {
    throw std::logic_error("chat sessions are not built");
}

int common_log_get_verbosity_thold() {
    return LOG_LEVEL_INFO; // what is said for debugging can be long
}

common_log * common_log_main() {
    return nullptr; // there is one log
}

void common_log_add(common_log *, ggml_log_level level, const char * format, ...) {
    char    text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);

    ggml_log_callback receive = nullptr;
    void *            data    = nullptr;
    llama_log_get(&receive, &data);
    receive(level, text, data);
}
