#include "chat-request.h"

#include "json-schema-to-grammar.h"

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
    json_schema_to_grammar(schema); // throws if it cannot be one
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

common_chat_templates_inputs chat_request_read(const common_json & request, bool thinks, bool parallel) {
    common_chat_templates_inputs inputs;
    inputs.messages = common_chat_msgs_parse_oaicompat(request.at("messages"));
    if (inputs.messages.empty()) {
        throw std::invalid_argument("there are no messages");
    }
    if (has(request, "tools")) {
        inputs.tools = common_chat_tools_parse_oaicompat(request.at("tools"));
        for (const auto & tool : inputs.tools) {
            common_chat_schema_from_json(common_json::parse(tool.parameters)); // throws if it cannot be a grammar
        }
    }
    inputs.tool_choice         = common_chat_tool_choice_parse_oaicompat(request.value("tool_choice", "auto"));
    inputs.parallel_tool_calls = request.value("parallel_tool_calls", parallel);
    inputs.json_schema         = read_schema(request);
    inputs.grammar             = request.value("grammar", "");
    if (!inputs.grammar.empty() && !inputs.json_schema.empty()) {
        throw std::invalid_argument("either a grammar or a JSON schema, not both");
    }
    inputs.reasoning_format = common_reasoning_format_from_name(request.value("reasoning_format", "deepseek"));
    inputs.enable_thinking  = thinks && request.value("enable_thinking", true);
    read_variables(request, inputs);
    read_continuation(request, inputs);
    return inputs;
}

static common_json trigger_write(const common_grammar_trigger & trigger) {
    switch (trigger.type) {
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN:
            return { { "type", "pattern" }, { "value", trigger.value } };
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL:
            return { { "type", "pattern" }, { "value", "^(?:" + trigger.value + ")$" } };
        default:
            return { { "type", "word" }, { "value", trigger.value } };
    }
}

common_json chat_prompt_write(const common_chat_params & prompt, const common_chat_templates_inputs & inputs) {
    auto triggers = common_json::array();
    for (const auto & trigger : prompt.grammar_triggers) {
        triggers.push_back(trigger_write(trigger));
    }
    const bool  calls_tools = !inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
    common_json parser      = {
        { "format", (int) prompt.format },
        { "reasoning_format", common_reasoning_format_name(inputs.reasoning_format) },
        { "generation_prompt", prompt.generation_prompt },
        { "parse_tool_calls", calls_tools },
        { "is_continuation", inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE },
        { "parser", prompt.parser },
    };
    return {
        { "prompt", prompt.prompt },
        { "grammar", prompt.grammar },
        { "grammar_lazy", prompt.grammar_lazy },
        { "grammar_triggers", triggers },
        { "preserved_tokens", prompt.preserved_tokens },
        { "additional_stops", prompt.additional_stops },
        { "generation_prompt", prompt.generation_prompt },
        { "supports_thinking", prompt.supports_thinking },
        { "thinking_start_tag", prompt.thinking_start_tag },
        { "thinking_end_tags", prompt.thinking_end_tags },
        { "parser", parser.dump() },
    };
}

common_chat_parser_params chat_parser_read(const common_json & parser) {
    common_chat_parser_params params;
    params.format            = (common_chat_format) parser.at("format").get<int>();
    params.reasoning_format  = common_reasoning_format_from_name(parser.at("reasoning_format"));
    params.generation_prompt = parser.at("generation_prompt").get<std::string>();
    params.parse_tool_calls  = parser.at("parse_tool_calls").get<bool>();
    params.is_continuation   = parser.at("is_continuation").get<bool>();
    const std::string arena  = parser.at("parser");
    if (!arena.empty()) {
        params.parser.load(arena);
    }
    return params;
}

static common_json tool_call_write(const common_chat_tool_call & call) {
    return { { "id", call.id }, { "name", call.name }, { "arguments", call.arguments } };
}

common_json chat_message_write(const common_chat_msg & message) {
    auto calls = common_json::array();
    for (const auto & call : message.tool_calls) {
        calls.push_back(tool_call_write(call));
    }
    return {
        { "content", message.render_content() },
        { "reasoning_content", message.reasoning_content },
        { "tool_calls", calls },
    };
}

common_json chat_delta_write(const common_chat_msg_diff & delta) {
    common_json written = common_json::object();
    if (!delta.reasoning_content_delta.empty()) {
        written["reasoning_content"] = delta.reasoning_content_delta;
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
