// Chat templates: any text is read as one and renders a chat, within its bounds.
//
// A case is the template. Pieces of Jinja are in fuzz-template.dict.

#include "pymtp-text.h"

#include <cstdint>
#include <string>

static const char * const REQUEST = R"({
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "reasoning_content": "a", "tool_calls": [
            {"type": "function", "id": "1", "function": {"name": "weather", "arguments": "{\"city\": \"b\"}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
        {"role": "user", "content": "And now?"}],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters":
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}],
    "chat_template_kwargs": {"numbers": [3, 1.5, -1, "2", null, [4, 5], {"6": 7}]}
})";

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    const std::string     source(reinterpret_cast<const char *>(data), size);
    pymtp_chat_template * made = nullptr;
    char *                json = nullptr;
    if (pymtp_chat_template_init(nullptr, source.c_str(), &made, &json) != PYMTP_OK) {
        return 0;
    }
    pymtp_json_free(json);
    pymtp_chat_parser * parser = nullptr;
    if (pymtp_chat_template_render(made, REQUEST, &parser, &json) == PYMTP_OK) {
        pymtp_free(parser);
        pymtp_json_free(json);
    }
    pymtp_free(made);
    return 0;
}
