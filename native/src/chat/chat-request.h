#pragma once

// A request for a chat and what comes of it, from JSON and to JSON. See pymtp-text.h for the fields.
// Knows llama.cpp's common; no handles and no statuses.

#include "chat.h"

// Throws std::exception if the request is malformed. What it leaves out is as in llama-server, where thinks: whether
// the template has a thinking, and parallel: whether it can call several tools at once.
common_chat_templates_inputs chat_request_read(const common_json & request, bool thinks, bool parallel);

common_json chat_prompt_write(const common_chat_params & prompt, const common_chat_templates_inputs & inputs);

// of what chat_prompt_write has written as "parser"
common_chat_parser_params chat_parser_read(const common_json & parser);

common_json chat_message_write(const common_chat_msg & message);
common_json chat_delta_write(const common_chat_msg_diff & delta);
