// The C interface of chats: templates, parsers of answers, JSON schemas.

#include "chat-limits.h"
#include "chat.h"
#include "guard.h"
#include "jinja/parser.h"
#include "json-schema-to-grammar.h"
#include "pymtp-text.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

// --- a request for a chat and what comes of it, from JSON and to JSON: pymtp-text.h has the fields

static bool has(const common_json & object, const char * key) {
    return object.contains(key) && !object.at(key).is_null();
}

static std::string read_schema(const common_json & request) {
    if (!has(request, "json_schema")) {
        return "";
    }
    common_json schema = request.at("json_schema");
    if (schema.is_object() && schema.empty()) {
        schema["type"] = "object";
    }
    return schema.dump();
}

// the variables of the template besides, and what one of them says of the thinking
static void read_variables(const common_json & request, common_chat_templates_inputs & inputs) {
    inputs.chat_template_kwargs["preserve_reasoning"] = "true";
    if (has(request, "chat_template_kwargs")) {
        for (const auto & [key, value] : request.at("chat_template_kwargs").items()) {
            inputs.chat_template_kwargs[key] = value.dump();
        }
    }
    const auto found = inputs.chat_template_kwargs.find("enable_thinking");
    if (found != inputs.chat_template_kwargs.end()) {
        if (found->second != "true" && found->second != "false") {
            throw std::invalid_argument("enable_thinking has to be true or false, not " + found->second);
        }
        inputs.enable_thinking = found->second == "true";
    }
}

static void read_continuation(const common_json & request, common_chat_templates_inputs & inputs) {
    inputs.add_generation_prompt = request.value("add_generation_prompt", true);
    if (!has(request, "continue_final_message")) {
        return;
    }
    inputs.continue_final_message = common_chat_continuation_parse(request.at("continue_final_message"));
    if (inputs.continue_final_message == COMMON_CHAT_CONTINUATION_NONE) {
        return;
    }
    if (inputs.messages.back().role != "assistant" || !inputs.messages.back().tool_calls.empty()) {
        throw std::invalid_argument("the message to continue has to be the assistant's, without tool calls");
    }
    inputs.add_generation_prompt = false;
}

// Throws std::exception if the request is malformed. What it leaves out is as in llama-server, where thinks: whether
// the template has a thinking, and parallel: whether it can call several tools at once.
static common_chat_templates_inputs chat_request_read(const common_json & request, bool thinks, bool parallel) {
    common_chat_templates_inputs inputs;
    inputs.messages = common_chat_msgs_parse_oaicompat(request.at("messages"));
    if (has(request, "tools")) {
        inputs.tools = common_chat_tools_parse_oaicompat(request.at("tools"));
        for (const auto & tool : inputs.tools) {
            common_chat_schema_from_json(common_json::parse(tool.parameters)); // throws if it cannot be a grammar
        }
    }
    inputs.tool_choice         = common_chat_tool_choice_parse_oaicompat(request.value("tool_choice", "auto"));
    inputs.parallel_tool_calls = request.value("parallel_tool_calls", parallel);
    inputs.json_schema         = read_schema(request);
    inputs.reasoning_format    = common_reasoning_format_from_name(request.value("reasoning_format", "deepseek"));
    inputs.enable_thinking     = thinks && request.value("enable_thinking", true);
    read_variables(request, inputs);
    read_continuation(request, inputs);
    return inputs;
}

static common_json trigger_write(const common_grammar_trigger & trigger) {
    const bool is_full    = trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL;
    const bool is_pattern = is_full || trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN;
    return { { "text", is_full ? "^(?:" + trigger.value + ")$" : trigger.value }, { "is_pattern", is_pattern } };
}

static common_json chat_prompt_write(const common_chat_params & prompt) {
    auto triggers = common_json::array();
    for (size_t i = 0; prompt.grammar_lazy && i < prompt.grammar_triggers.size(); ++i) {
        triggers.push_back(trigger_write(prompt.grammar_triggers[i]));
    }
    return {
        { "text", prompt.prompt },
        { "grammar", prompt.grammar },
        { "triggers", triggers },
        { "preserved_tokens", prompt.preserved_tokens },
        { "stop", prompt.additional_stops },
        { "generation_prompt", prompt.generation_prompt },
        { "thinking_begin", prompt.thinking_start_tag },
        { "thinking_ends", prompt.thinking_end_tags },
    };
}

static common_json tool_call_write(const common_chat_tool_call & call) {
    return { { "id", call.id }, { "name", call.name }, { "arguments", call.arguments } };
}

static common_json chat_message_write(const common_chat_msg & message) {
    auto calls = common_json::array();
    for (const auto & call : message.tool_calls) {
        calls.push_back(tool_call_write(call));
    }
    return {
        { "content", message.render_content() },
        { "reasoning", message.reasoning_content },
        { "tool_calls", calls },
    };
}

static common_json chat_delta_write(const common_chat_msg_diff & delta) {
    common_json written = common_json::object();
    if (!delta.reasoning_content_delta.empty()) {
        written["reasoning"] = delta.reasoning_content_delta;
    }
    if (!delta.content_delta.empty()) {
        written["content"] = delta.content_delta;
    }
    if (delta.tool_call_index != std::string::npos) {
        written["tool_call"]          = tool_call_write(delta.tool_call_delta);
        written["tool_call"]["index"] = delta.tool_call_index;
    }
    return written;
}

// --- templates

struct pymtp_chat_template {
    static constexpr const char * what = "chat template";

    common_chat_templates_ptr   templates;
    std::map<std::string, bool> caps;
    bool                        is_jinja = true; // else it is one that llama.cpp writes by itself
};

struct pymtp_chat_parser {
    static constexpr const char * what = "chat parser";

    // what the parsers of all answers to a prompt have in common
    struct prompt {
        common_chat_parser_params params;
        common_chat_msg           begun; // what the prompt has of the message, which is not part of the answer
    };

    explicit pymtp_chat_parser(std::shared_ptr<const prompt> of) : of(std::move(of)), message(this->of->begun) {}

    std::shared_ptr<const prompt> of;
    std::string                   text;     // of the answer so far
    common_chat_msg               message;
    std::vector<std::string>      call_ids; // of its tool calls
};

static void give(const common_json & value, char ** json) {
    const std::string text = value.dump_safe();
    auto * const      made = (char *) malloc(text.size() + 1);
    if (!made) {
        throw std::bad_alloc();
    }
    memcpy(made, text.c_str(), text.size() + 1);
    *json = made;
}

void pymtp_json_free(char * json) {
    pymtp_guard([&] { free(json); });
}

// whether it names a template that llama.cpp has no Jinja for; of chatml it has
static bool is_name_of_code(const std::string & source) {
    std::vector<const char *> names(llama_chat_builtin_templates(nullptr, 0));
    llama_chat_builtin_templates(names.data(), names.size());
    return source != "chatml" && std::find(names.begin(), names.end(), source) != names.end();
}

int32_t pymtp_chat_template_init(const llama_model * model, const char * source, pymtp_chat_template ** chat_template,
                                 char ** json) {
    return pymtp_guard([&] {
        pymtp_need(chat_template, "the template") = nullptr;
        pymtp_need(json, "the JSON");
        if (source && !*source) { // for llama.cpp, no source either
            source = nullptr;
        }
        const char * const text = source || !model ? source : llama_model_chat_template(model, nullptr);
        pymtp_refuse_if(!text, "there is no chat template");
        const chat_limits limits(strlen(text));

        auto made      = std::make_unique<pymtp_chat_template>();
        made->is_jinja = !source || !is_name_of_code(source);
        // else it would be the whole prompt
        pymtp_refuse_if(source && made->is_jinja && !strchr(source, '{') && strcmp(source, "chatml") != 0,
                        "llama.cpp has none of this name");
        const auto why =
            pymtp_thrown([&] { made->templates = common_chat_templates_init(model, source ? source : ""); });
        if (!why.empty()) {
            // llama.cpp drops the reason on the way: lexer and parser throw it again
            jinja::parse_from_tokens(jinja::lexer().tokenize(text));
            pymtp_refuse("%s", why.text);
        }
        made->caps = common_chat_templates_get_caps(made->templates.get());

        bool & thinks = made->caps["supports_thinking"];
        thinks        = false;
        pymtp_thrown([&] { thinks = common_chat_templates_support_enable_thinking(made->templates.get()); });
        give(common_json(made->caps), json);
        pymtp_give(chat_template, std::move(made));
    });
}

int32_t pymtp_chat_template_render(const pymtp_chat_template * chat_template, const char * request,
                                   pymtp_chat_parser ** parser, char ** json) {
    return pymtp_guard(chat_template, [&](pymtp_chat_template & self) {
        pymtp_need(request, "the request");
        pymtp_need(parser, "the parser") = nullptr;
        pymtp_need(json, "the JSON");
        chat_limits  limits(strlen(request));
        const auto & caps = self.caps;

        common_chat_templates_inputs inputs;
        pymtp_fails_as(PYMTP_INVALID, "%s", [&] {
            inputs = chat_request_read(common_json::parse(request), caps.at("supports_thinking"),
                                       caps.at("supports_parallel_tool_calls"));
        });
        inputs.use_jinja = self.is_jinja;
        limits.allow_messages(inputs.messages.size());

        const auto prompt     = common_chat_templates_apply(self.templates.get(), inputs);
        auto       shared     = std::make_shared<pymtp_chat_parser::prompt>();
        shared->params        = common_chat_parser_params(prompt);
        shared->params.parser = prompt.parser;
        if (inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE) {
            shared->begun = common_chat_parse(common_chat_input(), true, shared->params);
        }
        auto made = std::make_unique<pymtp_chat_parser>(std::move(shared));
        give(chat_prompt_write(prompt), json);
        pymtp_give(parser, std::move(made));
    });
}

// --- parsers

int32_t pymtp_chat_parser_init(const pymtp_chat_parser * parser, pymtp_chat_parser ** chat_parser) {
    return pymtp_guard(parser, [&](pymtp_chat_parser & self) {
        pymtp_need(chat_parser, "the parser") = nullptr;
        pymtp_give(chat_parser, std::make_unique<pymtp_chat_parser>(self.of));
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
        auto message = common_chat_parse(common_chat_input(self.text), is_partial != 0, self.of->params);
        if (!message.empty()) {
            message.set_tool_call_ids(self.call_ids, random_id);
            for (const auto & delta : common_chat_msg_diff::compute_diffs(self.message, message)) {
                deltas.push_back(chat_delta_write(delta));
            }
            self.message = std::move(message);
        }
        give(deltas, json);
    });
}

int32_t pymtp_chat_parser_message(const pymtp_chat_parser * chat_parser, char ** json) {
    return pymtp_guard(chat_parser, [&](pymtp_chat_parser & self) {
        pymtp_need(json, "the JSON");
        give(chat_message_write(self.message), json);
    });
}

// --- schemas

int32_t pymtp_schema_to_grammar(const char * schema, char ** json) {
    return pymtp_guard([&] {
        pymtp_need(schema, "the schema");
        pymtp_need(json, "the JSON");
        const chat_limits limits(strlen(schema));
        std::string       grammar;
        pymtp_fails_as(PYMTP_INVALID, "%s", [&] { grammar = json_schema_to_grammar(common_json::parse(schema)); });
        give(common_json(grammar), json);
    });
}

int64_t pymtp_chat_steps(void) {
    return pymtp_guard_or((int64_t) 0, [] { return chat_limits::n_steps; });
}
