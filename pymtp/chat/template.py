"""A chat template: a model's own, or another in its place.

Owns the native handle. Knows messages and texts; never tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pymtp.binding.library import ffi, json_of, lib
from pymtp.chat.params import ChatParams
from pymtp.chat.prompt import ChatPrompt
from pymtp.chat.schema import ignored_of, refuse_ignored, schema_grammar
from pymtp.errors import BackendError, InvalidParameter, ModelError, PymtpError, UnsupportedModel, require
from pymtp.loading.vocabulary import Vocabulary

_OF_SCHEMA = "response-format"
"""The rule of an answer with a schema, which some of llama.cpp's grammars do not have."""
_FENCED = f'"```json" space {_OF_SCHEMA} space "```" | '
"""The form of an answer with a schema that llama.cpp allows besides plain JSON: its parser leaves out the fences."""


class ChatTemplate:
    """A chat template, as Jinja; any number of threads may use it.

    `source` None takes the model's own; "chatml", "llama3" and others are names of llama.cpp's. `vocabulary` is the
    model's; None: a template without a model, for which no token begins or ends a text.

    Raises UnsupportedModel if there is no template, ModelError if the model's own is not Jinja, InvalidParameter if
    `source` is not.
    """

    def __init__(self, vocabulary: Vocabulary | None, source: str | None = None) -> None:
        self.source = source or (vocabulary.chat_template if vocabulary else None)
        """Its text."""
        if self.source is None:
            raise UnsupportedModel("the model has no chat template; pass the prompt as is (generate, --raw)")
        self._whose = "the" if source else "the model's"
        handle = ffi.new("struct pymtp_chat_template **")
        data = source.encode(errors="replace") if source else ffi.NULL
        model = vocabulary.native_model if vocabulary else ffi.NULL
        try:
            caps = json_of(dict[str, bool], lib.pymtp_chat_template_init, model, data, handle)
        except PymtpError as error:
            if source:
                allowed = f"Jinja, or the name of a template ({error})"
                raise InvalidParameter("chat_template", allowed, value=source) from None
            raise _failure(error, self._whose) from None
        self._native = ffi.gc(handle[0], lib.pymtp_free)
        self.caps: Mapping[str, bool] = caps
        """What it can do, by llama.cpp's names: supports_thinking, supports_tools, ..."""

    def render(self, messages: Sequence[Mapping[str, Any]], params: ChatParams | None = None) -> ChatPrompt:
        """The prompt of `messages`, as in OpenAI's chat completions, and what the answer may look like.

        Raises InvalidParameter for messages, tools or a schema that cannot be used, ModelError if the template fails.
        """
        _check_messages(messages)
        require(isinstance(params, (ChatParams, type(None))), "params", "a ChatParams", params)
        params = params or ChatParams()
        asked, gbnf, ignored = _request(messages, params)
        try:
            request = json.dumps(asked, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidParameter("messages", f"such that JSON in UTF-8 can hold them ({error})") from None
        try:
            parser = ffi.new("struct pymtp_chat_parser **")
            made = json_of(ChatPrompt, lib.pymtp_chat_template_render, self._native, request, parser)
        except BackendError as error:
            raise _failure(error, self._whose) from None
        except PymtpError as error:
            raise InvalidParameter("messages and tools", f"as in OpenAI's chat completions ({error})") from None
        native, grammar = ffi.gc(parser[0], lib.pymtp_free), made.grammar or ""
        for function in (tool["function"] for tool in asked["tools"]):
            ignored += (f"{what} of the tool {function['name']!r}" for what in ignored_of(function.get("parameters")))
        if gbnf and not grammar and not made.thinking_begin:
            grammar = gbnf
        if grammar != gbnf and gbnf and _OF_SCHEMA not in grammar:
            unplaced = "a schema of answers with this chat template" + " and tools" * bool(asked["tools"])
            if params.strict_schemas:
                refuse_ignored("json_schema", [unplaced])
            ignored.append(unplaced)
        if params.strict_schemas:
            refuse_ignored("parameters of tools", ignored)
        if asked["tools"] and params.has_to_call == "required":
            grammar = _without_content(grammar)
        grammar = grammar.replace(_FENCED, "")
        if params.calls_once:
            grammar = _with_one_call(grammar)
        return replace(made, parser=native, grammar=grammar or None, ignored=tuple(dict.fromkeys(ignored)))


def _without_content(grammar: str) -> str:
    """The grammar of an answer that has to call a tool, without the content that llama.cpp allows before the call.

    Content has no end there: an answer could consist of it up to its last token. Thinking before the call stays.
    """
    return re.sub(r"(?m)^(root ::= .*?)\buntil-\d+\?? (?:space )?(?=tool-calls?(?:-root)?$)", r"\1", grammar)


def _with_one_call(grammar: str) -> str:
    """The grammar of an answer that calls one tool, where llama.cpp allows several though asked for one."""
    return re.sub(r"(?m)^((?:[\w-]*-)?(?:tool-calls?|tools) ::= .*(?:\)|tool-[\w-]+))\+", r"\1", grammar)


def _failure(error: Exception, whose: str) -> ModelError:
    """A template is a program from the model's file: it can fail in any way."""
    why = str(error).rpartition("Error: ")[2].removeprefix("Jinja Exception: ")
    return ModelError(f"{whose} chat template fails ({why}); use --raw, or /completion, for the prompt as is")


def _request(messages: Sequence[Mapping[str, Any]], params: ChatParams) -> tuple[dict[str, Any], str, list[str]]:
    """The request for llama.cpp, the grammar of its answer's schema, and what that cannot follow of the schema.

    An answer that has to call a tool has no content that could follow a schema.
    """
    tools = params.offered_tools
    # thinking in the content has no place in a grammar, not even where the prompt has begun it
    has_form = params.json_schema is not None or (tools and params.has_to_call == "required")
    request: dict[str, Any] = {
        "messages": list(messages),
        "tools": tools,
        "tool_choice": params.has_to_call,
        "reasoning_format": "auto" if has_form and params.reasoning_format == "none" else params.reasoning_format,
        "enable_thinking": params.reasoning != "off",
        "chat_template_kwargs": dict(params.template_kwargs),
        "add_generation_prompt": params.add_generation_prompt,
        "continue_final_message": params.continue_final_message,
    }
    if params.calls_once or params.parallel_tool_calls is not None:
        request["parallel_tool_calls"] = not params.calls_once
    if params.json_schema is not None and not (tools and params.has_to_call == "required"):
        request["json_schema"], gbnf, ignored = schema_grammar(params.json_schema)
        if params.strict_schemas:
            refuse_ignored("json_schema", ignored)
        return request, gbnf, ignored
    return request, "", []


def _check_messages(messages: object) -> None:
    """Raise InvalidParameter unless they look like messages; what is in them is llama.cpp's to judge."""
    expected = 'a list of {"role": ..., "content": ...}'
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence) or not messages:
        raise InvalidParameter("messages", expected, value=messages)
    for message in messages:
        is_message = isinstance(message, Mapping) and isinstance(message.get("role"), str)
        require(is_message and ("content" in message or message.get("tool_calls")), "messages", expected, message)
