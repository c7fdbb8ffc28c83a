"""What is asked of a chat besides its messages: tools, the form of the answer, thinking, variables of the template.

Knows values and their ranges; no template.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pymtp.errors import InvalidParameter, require

REASONING = ("auto", "on", "off")
REASONING_FORMATS = ("auto", "deepseek", "deepseek-legacy", "none")
_TOOL_CHOICES = ("auto", "required", "none")


@dataclass(frozen=True)
class ChatParams:
    """What is asked of a chat. Raises InvalidParameter for a value out of range."""

    tools: Sequence[Mapping[str, Any]] = ()
    """Functions that the answer may call, as in OpenAI's chat completions."""
    tool_choice: Literal["auto", "required", "none"] | Mapping[str, Any] = "auto"
    """auto, none, required, or a function: {"type": "function", "function": {"name": ...}}."""
    parallel_tool_calls: bool | None = None
    """Several calls in one answer; None: if the template can."""
    json_schema: str | Mapping[str, Any] | None = None
    """The content of the answer follows this schema."""
    strict_schemas: bool = True
    """Refuse schemas, also of tools, that a grammar cannot follow; else ChatPrompt.ignored lists what is ignored."""
    reasoning: Literal["auto", "on", "off"] = "auto"
    """Thinking: off asks the template for none; auto and on: as the template has it."""
    reasoning_format: Literal["auto", "deepseek", "deepseek-legacy", "none"] = "auto"
    """Where the thinking goes; none: into the content, unless that is JSON or a call by force. Else it is separate."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the template."""
    add_generation_prompt: bool = True
    """The prompt ends where an answer begins."""
    continue_final_message: bool | Literal["content", "reasoning_content"] = False
    """The answer continues the last message, which is the assistant's; there is no generation prompt then."""

    def __post_init__(self) -> None:
        for name, words in {"reasoning": REASONING, "reasoning_format": REASONING_FORMATS}.items():
            require(getattr(self, name) in words, name, f"one of {', '.join(words)}", getattr(self, name))
        is_list = not isinstance(self.tools, (str, bytes, Mapping))
        are_tools = is_list and all(isinstance(tool, Mapping) for tool in self.tools)
        require(are_tools, "tools", 'a list of {"type": "function", "function": ...}')
        is_choice = isinstance(self.tool_choice, Mapping) or self.tool_choice in _TOOL_CHOICES
        require(is_choice, "tool_choice", f"one of {', '.join(_TOOL_CHOICES)}, or a function", self.tool_choice)
        is_mapping = isinstance(self.template_kwargs, Mapping)
        require(is_mapping, "template_kwargs", "a mapping of names to values", self.template_kwargs)
        allowed, asked = "True, False, content or reasoning_content", self.continue_final_message
        require(asked in (True, False, "content", "reasoning_content"), "continue_final_message", allowed, asked)

    @property
    def offered_tools(self) -> list[Mapping[str, Any]]:
        """The tools; if one has to be called, only that one."""
        if isinstance(self.tool_choice, str):
            return list(self.tools)
        wanted = name_of(self.tool_choice)
        found = [tool for tool in self.tools if name_of(tool) == wanted]
        require(found, "tool_choice", "one of the tools", wanted)
        return found

    @property
    def calls_once(self) -> bool:
        """Whether an answer has one call at most: a tool that has to be called is called once."""
        return self.parallel_tool_calls is False or not isinstance(self.tool_choice, str)

    @property
    def has_to_call(self) -> str:
        """llama.cpp's word for whether the answer has to call a tool."""
        return self.tool_choice if isinstance(self.tool_choice, str) else "required"


def asked_as_openai(params: ChatParams | None, response_format: Mapping[str, Any] | None, **given: Any) -> ChatParams:
    """`params` with what of the others is not None; `given`: fields of it. Raises InvalidParameter."""
    changes = {name: value for name, value in given.items() if value is not None}
    if response_format is not None:
        changes["json_schema"] = schema_of(response_format)
    params = ChatParams() if params is None else params
    return replace(params, **changes) if changes else params


def schema_of(response_format: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The JSON schema that an answer in one of OpenAI's formats follows; None: it is text. Raises InvalidParameter."""
    require(isinstance(response_format, Mapping), "response_format", 'an object with a "type"', response_format)
    kind, wrapper = response_format.get("type"), response_format
    if kind in (None, "", "text"):
        has_schema = "schema" in response_format or "json_schema" in response_format
        require(not has_schema, "response_format", 'of the type "json_schema" where it has a schema', response_format)
        return None
    if kind == "json_schema":
        wrapper = wrapper.get("json_schema", wrapper)  # llama-server takes the schema without a wrapper too
    elif kind != "json_object":
        allowed = 'an object whose type is "text", "json_object" or "json_schema"'
        raise InvalidParameter("response_format", allowed, value=kind)
    schema = wrapper.get("schema", None if kind == "json_schema" else {}) if isinstance(wrapper, Mapping) else None
    require(isinstance(schema, Mapping), "response_format", 'an object with a schema, as {"schema": {...}}', schema)
    return schema or {"type": "object"}


def name_of(tool: Mapping[str, Any]) -> str | None:
    """The name of a tool's function."""
    function = tool.get("function")
    return function.get("name") if isinstance(function, Mapping) else None
