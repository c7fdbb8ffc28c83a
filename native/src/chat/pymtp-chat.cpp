// The C interface of chats: templates, parsers of answers, JSON schemas.

#include "chat-limits.h"
#include "chat-request.h"
#include "guard.h"
#include "jinja/parser.h"
#include "json-schema-to-grammar.h"
#include "pymtp-text.h"

#include <cstdlib>
#include <cstring>
#include <random>

struct pymtp_chat_template {
    static constexpr const char * what = "chat template";

    common_chat_templates_ptr   templates;
    std::map<std::string, bool> caps;
};

struct pymtp_chat_parser {
    static constexpr const char * what = "chat parser";

    common_chat_parser_params params;
    std::string               text;     // of the answer so far
    common_chat_msg           message;
    std::vector<std::string>  call_ids; // of its tool calls
};

static int32_t give(const common_json & value, char ** json) {
    const std::string text = value.dump_safe();
    auto * const      made = (char *) malloc(text.size() + 1);
    if (!made) {
        throw std::bad_alloc();
    }
    memcpy(made, text.c_str(), text.size() + 1);
    *json = made;
    return PYMTP_OK;
}

void pymtp_json_free(char * json) {
    pymtp_guard([&]() -> int32_t {
        free(json);
        return PYMTP_OK;
    });
}

//
// templates
//

int32_t pymtp_chat_template_init(const llama_model * model, const char * source, pymtp_chat_template ** chat_template) {
    return pymtp_guard([&]() -> int32_t {
        pymtp_need(chat_template, "the template") = nullptr;
        if (source && !*source) { // for llama.cpp, no source either
            source = nullptr;
        }
        const char * const text = source || !model ? source : llama_model_chat_template(model, nullptr);
        if (!text) {
            return pymtp_fail(PYMTP_INVALID, "there is no chat template");
        }
        const chat_limits limits(strlen(text));

        auto       made = std::make_unique<pymtp_chat_template>();
        const auto why =
            pymtp_thrown([&] { made->templates = common_chat_templates_init(model, source ? source : ""); });
        if (!why.empty()) {
            // llama.cpp drops the reason on the way: lexer and parser throw it again
            jinja::parse_from_tokens(jinja::lexer().tokenize(text));
            return pymtp_fail(PYMTP_INVALID, "%s", why.text);
        }
        made->caps = common_chat_templates_get_caps(made->templates.get());

        bool & thinks = made->caps["supports_thinking"];
        thinks        = false;
        pymtp_thrown([&] { thinks = common_chat_templates_support_enable_thinking(made->templates.get()); });
        return pymtp_give(chat_template, std::move(made));
    });
}

int32_t pymtp_chat_template_caps(const pymtp_chat_template * chat_template, char ** json) {
    return pymtp_guard(chat_template, [&](pymtp_chat_template & self) {
        pymtp_need(json, "the JSON");
        return give(common_json(self.caps), json);
    });
}

int32_t pymtp_chat_template_render(const pymtp_chat_template * chat_template, const char * request, char ** json) {
    return pymtp_guard(chat_template, [&](pymtp_chat_template & self) -> int32_t {
        pymtp_need(request, "the request");
        pymtp_need(json, "the JSON");
        const chat_limits limits(strlen(request));
        const auto &      caps = self.caps;

        common_chat_templates_inputs inputs;
        const auto                   why = pymtp_thrown([&] {
            inputs = chat_request_read(common_json::parse(request), caps.at("supports_thinking"),
                                       caps.at("supports_parallel_tool_calls"));
        });
        if (!why.empty()) {
            return pymtp_fail(PYMTP_INVALID, "%s", why.text);
        }
        return give(chat_prompt_write(common_chat_templates_apply(self.templates.get(), inputs), inputs), json);
    });
}

//
// parsers
//

int32_t pymtp_chat_parser_init(const char * parser, pymtp_chat_parser ** chat_parser) {
    return pymtp_guard([&] {
        pymtp_need(chat_parser, "the parser") = nullptr;
        pymtp_need(parser, "what the parser is made from");
        auto made    = std::make_unique<pymtp_chat_parser>();
        made->params = chat_parser_read(common_json::parse(parser));
        if (made->params.is_continuation) {
            // what the prompt has of the message is not part of the answer
            made->message = common_chat_parse("", true, made->params);
        }
        return pymtp_give(chat_parser, std::move(made));
    });
}

static std::string random_id() {
    static const char         letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    thread_local std::mt19937 rng(std::random_device{}());

    std::uniform_int_distribution<size_t> pick(0, sizeof(letters) - 2);
    std::string                           id(32, ' ');
    for (char & letter : id) {
        letter = letters[pick(rng)];
    }
    return id;
}

int32_t pymtp_chat_parser_push(pymtp_chat_parser * chat_parser, const char * text, int64_t n_bytes, int32_t is_partial,
                               char ** json) {
    return pymtp_guard(chat_parser, [&](pymtp_chat_parser & self) {
        pymtp_need_array(text, n_bytes, INT32_MAX, "bytes of the answer");
        pymtp_need(json, "the JSON");
        self.text.append(text, n_bytes);
        auto deltas  = common_json::array();
        auto message = common_chat_parse(self.text, is_partial != 0, self.params);
        if (!message.empty()) {
            message.set_tool_call_ids(self.call_ids, random_id);
            for (const auto & delta : common_chat_msg_diff::compute_diffs(self.message, message)) {
                deltas.push_back(chat_delta_write(delta));
            }
            self.message = std::move(message);
        }
        return give(deltas, json);
    });
}

int32_t pymtp_chat_parser_message(const pymtp_chat_parser * chat_parser, char ** json) {
    return pymtp_guard(chat_parser, [&](pymtp_chat_parser & self) {
        pymtp_need(json, "the JSON");
        return give(chat_message_write(self.message), json);
    });
}

//
// schemas
//

int32_t pymtp_schema_to_grammar(const char * schema, char ** json) {
    return pymtp_guard([&]() -> int32_t {
        pymtp_need(schema, "the schema");
        pymtp_need(json, "the JSON");
        const chat_limits limits(strlen(schema));
        std::string       grammar;
        const auto        why = pymtp_thrown([&] { grammar = json_schema_to_grammar(common_json::parse(schema)); });
        if (!why.empty()) {
            return pymtp_fail(PYMTP_INVALID, "%s", why.text);
        }
        return give(common_json(grammar), json);
    });
}

int64_t pymtp_chat_steps(void) {
    return pymtp_guard_or((int64_t) 0, [] { return chat_limits::steps_taken(); });
}
