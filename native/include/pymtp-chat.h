// pymtp: the C interface of chats. llama.cpp's own code renders the messages of a chat with a model's template, says
// what the answer may look like, and takes the answer apart again: reasoning, content, tool calls.
//
// Texts in JSON go in and come out, in UTF-8. What comes out is the caller's to free, with pymtp_json_free.
//
// Nothing throws across this interface. A function that can fail returns a pymtp_status; pymtp_error_message() then
// says why. A template may be used by several threads at once, a parser by one at a time.

#ifndef PYMTP_CHAT_H
#define PYMTP_CHAT_H

#include "pymtp.h"

#ifdef __cplusplus
extern "C" {
#endif

// cffi reads what is between the two markers
// [cffi begin]

struct pymtp_chat_template;
struct pymtp_chat_parser;

void pymtp_json_free(char * json);

// A template, as Jinja; source = NULL: the model's own, and "chatml" stands for that one. model gives the tokens that
// begin and end a text; NULL: there are none. PYMTP_INVALID if there is no template; PYMTP_FAILED if it is not Jinja.
int32_t pymtp_chat_template_init(const struct llama_model * model, const char * source,
                                 struct pymtp_chat_template ** chat_template);
void    pymtp_chat_template_free(struct pymtp_chat_template * chat_template);

// What the template can do: an object of booleans, such as supports_thinking and supports_tools.
int32_t pymtp_chat_template_caps(const struct pymtp_chat_template * chat_template, char ** json);

// Renders a chat. The request is an object with
//   messages, tools                  as in OpenAI's chat completions
//   tool_choice                      "auto" (default), "required", "none"
//   parallel_tool_calls              default: if the template can
//   json_schema, grammar             of the answer, one of them
//   reasoning_format                 "none", "auto", "deepseek" (default), "deepseek-legacy"
//   enable_thinking                  default: true
//   chat_template_kwargs             further variables of the template
//   add_generation_prompt            default: true
//   continue_final_message           true, "content", "reasoning_content"; default: false
// What comes out is an object with
//   prompt                           without a BOS that the vocabulary adds
//   grammar, grammar_lazy            of the answer, in GBNF; "": none. Lazy: from a trigger on
//   grammar_triggers                 [{"type": "word" or "pattern", "value"}]
//   preserved_tokens                 texts of special tokens that the parser has to see
//   additional_stops                 texts at which the answer ends
//   generation_prompt                the end of the prompt: what it has of the answer already
//   thinking_start_tag, thinking_end_tags
//   supports_thinking
//   parser                           for pymtp_chat_parser_init
// PYMTP_INVALID if the request is malformed; PYMTP_FAILED if the template fails.
int32_t pymtp_chat_template_render(const struct pymtp_chat_template * chat_template, const char * request,
                                   char ** json);

// Parses one answer. `parser`: as render has returned it.
int32_t pymtp_chat_parser_init(const char * parser, struct pymtp_chat_parser ** chat_parser);
void    pymtp_chat_parser_free(struct pymtp_chat_parser * chat_parser);

// The next piece of the answer; of whole characters, special tokens that are preserved among them. is_partial: more may
// come. What comes out is what the message got by it: [{"reasoning_content"}, {"content"},
// {"tool_call": {"index", "id", "name", "arguments"}}], of a tool call only what is new. PYMTP_FAILED if the answer is
// none that the template's model could give; the message is as it was before then.
int32_t pymtp_chat_parser_push(struct pymtp_chat_parser * chat_parser, const char * text, int64_t n_bytes,
                               int32_t is_partial, char ** json);

// The message so far: {"role", "content", "reasoning_content", "tool_calls"}, the last two if there are any.
int32_t pymtp_chat_parser_message(const struct pymtp_chat_parser * chat_parser, char ** json);

// The GBNF of a JSON schema, as a string. PYMTP_INVALID if the schema cannot be converted.
int32_t pymtp_schema_to_grammar(const char * schema, char ** json);

// How many steps the last template or schema of this thread took, of those that native/src/chat/chat-limits.h allows.
int64_t pymtp_chat_steps(void);

// [cffi end]

#ifdef __cplusplus
}
#endif

#endif
