"""What a chat is: the conversation, the settings for its next answers, and what goes with the next message.

Owns what commands and the loop change, and how a typed value becomes one of any dataclass. Knows neither of them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, get_args, get_type_hints

from pymtp import Answer, Conversation, GenerationParams, Image, InvalidParameter, Stats
from pymtp.errors import require

from .screen import Screen

_SWITCH = {"on": True, "true": True, "off": False, "false": False}
Params = TypeVar("Params")
Start = Callable[[Callable[[int, int], object] | None], Answer]
"""Begins an answer; called with what shows how far the prompt is."""


@dataclass
class Chat:
    conversation: Conversation
    params: GenerationParams
    screen: Screen
    attached: list[str] = field(default_factory=list)
    """Texts to send with the next message."""
    images: list[Image] = field(default_factory=list)
    """Images to send with the next message."""
    last_answer: Answer | None = None
    stats: Stats = field(default_factory=Stats)
    """Sum of all answers."""

    def message(self, text: str) -> Start:
        """A message with what is attached, which is attached no longer."""
        message, images = "\n\n".join([*self.attached, text]), self.images
        self.attached, self.images = [], []
        return lambda show: self.conversation.ask(message, self.params, images=images, on_prompt=show)


def names(params: Any) -> list[str]:
    """The parameters that can be set."""
    return [field.name for field in fields(params)]


def with_value(params: Params, name: str, text: str) -> Params:
    """Return `params`, a frozen dataclass, with `name` set to the value in `text`. Raises InvalidParameter."""
    value = _parse(name, text, get_type_hints(type(params))[name])
    return replace(params, **{name: value})  # type: ignore[type-var]


def as_typed(value: Any) -> str:
    """How people type a value: what `with_value` reads again."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ";".join(map(as_typed, value))
    return str(value)


def _parse(name: str, text: str, kind: Any) -> Any:
    if type(None) in get_args(kind):
        if text.lower() in ("none", "random", "default"):
            return None
        [kind] = (one for one in get_args(kind) if one is not type(None))
    if kind is bool:
        require(text.lower() in _SWITCH, name, "one of " + ", ".join(_SWITCH), text)
        return _SWITCH[text.lower()]
    if kind == tuple[str, ...]:
        return tuple(part.strip(" ") for part in re.split("[;,]", text) if part.strip(" ") and text != "none")
    require(kind in (int, float), name, "set by a flag when the program starts: it cannot be typed here")
    try:
        return kind(text)
    except ValueError:
        raise InvalidParameter(name, "an integer" if kind is int else "a number", value=text) from None
