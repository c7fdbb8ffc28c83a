"""What is asked of a chat besides its messages: tools, the form of the answer, thinking, variables of the template.

Knows values and their ranges; no template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pymtp.documented import documented
from pymtp.errors import InvalidParameter

REASONING = ("auto", "on", "off")
REASONING_FORMATS = ("auto", "deepseek", "deepseek-legacy", "none")
_TOOL_CHOICES = ("auto", "required", "none")


@documented
@dataclass(frozen=True)
class ChatParams:
    """What is asked of a chat. Raises InvalidParameter for a value out of range."""

    tools: Sequence[Mapping[str, Any]] = ()
    """Functions that the answer may call, as in OpenAI's chat completions."""
    tool_choice: Literal["auto", "required", "none"] | Mapping[str, Any] = "auto"
    """Whether it has to; {"type": "function", "function": {"name": ...}}: that one."""
    parallel_tool_calls: bool | None = None
    """Several calls in one answer; None: if the template can."""
    json_schema: str | Mapping[str, Any] | None = None
    """The content of the answer follows this schema."""
    reasoning: Literal["auto", "on", "off"] = "auto"
    """Thinking: off asks the template for none; auto and on: as the template has it."""
    reasoning_format: Literal["auto", "deepseek", "deepseek-legacy", "none"] = "auto"
    """Where the thinking goes. none: it stays in the content; otherwise it is apart."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the template."""
    add_generation_prompt: bool = True
    """The prompt ends where an answer begins."""
    continue_final_message: bool | Literal["content", "reasoning_content"] = False
    """The answer continues the last message, which is the assistant's; there is no generation prompt then."""

    def __post_init__(self) -> None:
        if self.reasoning not in REASONING:
            raise InvalidParameter("reasoning", f"one of {', '.join(REASONING)}", value=self.reasoning)
        if self.reasoning_format not in REASONING_FORMATS:
            allowed = f"one of {', '.join(REASONING_FORMATS)}"
            raise InvalidParameter("reasoning_format", allowed, value=self.reasoning_format)
        if isinstance(self.tools, (str, bytes, Mapping)) or not all(isinstance(tool, Mapping) for tool in self.tools):
            raise InvalidParameter("tools", 'a list of {"type": "function", "function": ...}')
        if self.tool_choice not in _TOOL_CHOICES and not isinstance(self.tool_choice, Mapping):
            raise InvalidParameter(
                "tool_choice", f"one of {', '.join(_TOOL_CHOICES)}, or a function", value=self.tool_choice
            )
        if not isinstance(self.template_kwargs, Mapping):
            raise InvalidParameter("template_kwargs", "a mapping of names to values", value=self.template_kwargs)
        if self.continue_final_message not in (True, False, "content", "reasoning_content"):
            allowed = "True, False, content or reasoning_content"
            raise InvalidParameter("continue_final_message", allowed, value=self.continue_final_message)

    @property
    def offered_tools(self) -> list[Mapping[str, Any]]:
        """The tools, of which one that has to be called is the only one."""
        if isinstance(self.tool_choice, str):
            return list(self.tools)
        wanted = name_of(self.tool_choice)
        found = [tool for tool in self.tools if name_of(tool) == wanted]
        if not found:
            raise InvalidParameter("tool_choice", "one of the tools", value=wanted)
        return found

    @property
    def has_to_call(self) -> str:
        """llama.cpp's word for whether the answer has to call a tool."""
        return self.tool_choice if isinstance(self.tool_choice, str) else "required"


def name_of(tool: Mapping[str, Any]) -> str | None:
    """The name of a tool's function."""
    function = tool.get("function")
    return function.get("name") if isinstance(function, Mapping) else None
