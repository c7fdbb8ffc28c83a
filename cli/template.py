"""The flags for chat templates and thinking, under llama.cpp's names.

Owns names and help texts, and turns values into pymtp's parameters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from pymtp import InvalidParameter

from .flags import with_flags
from .parsers import choice, integer
from .sampling import _text_of
from .text import decoded_value

if TYPE_CHECKING:
    from pymtp import ChatParams

Reasoning = Literal["on", "off", "auto"]


class ChatFlags(NamedTuple):
    """What the flags say."""

    template: str | None
    """A template in place of the model's own."""
    kwargs: Mapping[str, Any]
    reasoning: Reasoning
    reasoning_budget: int

    def params(self) -> ChatParams:
        """The parameters of a chat."""
        from pymtp import ChatParams

        return ChatParams(reasoning=self.reasoning, template_kwargs=self.kwargs)

    @property
    def is_given(self) -> bool:
        """Whether any of them says something about the template."""
        return self.template is not None or bool(self.kwargs) or self.reasoning != "auto"


def with_template(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter `chat_flags` by the flags of this module."""
    return with_flags(command, "chat_flags", _FLAGS, _chat_flags)


def _chat_flags(values: Mapping[str, Any]) -> ChatFlags:
    text = values["chat_template"]
    text = decoded_value("chat_template", text) if text else text
    template = _text_of(text, values["chat_template_file"], "chat_template")
    if template is not None and template.strip() != "chatml" and not ("{{" in template or "{%" in template):
        allowed = "a Jinja template, or chatml: other names are not known"
        raise InvalidParameter("chat_template", allowed, value=template[:40])
    return ChatFlags(template, _kwargs(values["chat_template_kwargs"]), values["reasoning"], values["reasoning_budget"])


def _kwargs(text: str | None) -> Mapping[str, Any]:
    if text is None:
        return {}
    text = decoded_value("chat_template_kwargs", text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter("chat_template_kwargs", f"a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise InvalidParameter("chat_template_kwargs", "a JSON object", value=text)
    return value


def _flag(kind: Any, *names: str, metavar: str, help: str, parser: Any = None) -> Any:
    return Annotated[kind, typer.Option(*names, parser=parser, metavar=metavar, help=help)]


_TEMPLATE = "Chat template; chatml: the built-in ChatML one.  [default: the model's own]"
_KWARGS = "More variables for the chat template, a JSON object."
_REASONING = "Thinking: off tells the chat template to leave it out; on and auto let it decide."
_BUDGET = "End the thinking after N tokens; -1: no limit."
_FLAGS: dict[str, tuple[Any, Any]] = {
    "chat_template": (_flag(str | None, "--chat-template", metavar="JINJA", help=_TEMPLATE), None),
    "chat_template_file": (
        _flag(Path | None, "--chat-template-file", metavar="FILE", help="Chat template from FILE."),
        None,
    ),
    "chat_template_kwargs": (_flag(str | None, "--chat-template-kwargs", metavar="JSON", help=_KWARGS), None),
    "reasoning": (Annotated[str, choice(Reasoning, "-rea", "--reasoning", help_text=_REASONING)], "auto"),
    "reasoning_budget": (_flag(int, "--reasoning-budget", parser=integer(-1), metavar="N", help=_BUDGET), -1),
}
