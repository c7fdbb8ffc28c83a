"""What the flags for chat templates and thinking say, as pymtp's parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pymtp import InvalidParameter

from .flags import Values
from .sampling import text_of
from .text import decoded_value

if TYPE_CHECKING:
    from pymtp import ChatParams


class ChatFlags(NamedTuple):
    """What the flags say."""

    template: str | None
    """A template in place of the model's own."""
    kwargs: Mapping[str, Any]
    reasoning: Literal["on", "off", "auto"]
    reasoning_budget: int

    def params(self) -> ChatParams:
        """The parameters of a chat."""
        from pymtp import ChatParams

        return ChatParams(reasoning=self.reasoning, template_kwargs=self.kwargs)

    @property
    def is_given(self) -> bool:
        """Whether any of them says something about the template."""
        return self.template is not None or bool(self.kwargs) or self.reasoning != "auto"


def chat_flags_of(flags: Values) -> ChatFlags:
    """What the flags say. Raises InvalidParameter and CommandError."""
    text = flags.chat_template
    text = decoded_value("chat_template", text) if text else text
    template = text_of(text, flags.chat_template_file, "chat_template")
    if template is not None and template.strip() != "chatml" and not ("{{" in template or "{%" in template):
        allowed = "a Jinja template, or chatml: other names are not known"
        raise InvalidParameter("chat_template", allowed, value=template[:40])
    return ChatFlags(template, _kwargs(flags.chat_template_kwargs), flags.reasoning, flags.reasoning_budget)


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
