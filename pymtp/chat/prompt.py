"""A chat that was rendered: the prompt, and what its template says of the answer.

Knows texts; the tokens that they become are the business of whoever generates.
"""

from dataclasses import dataclass, field
from typing import Any

from pymtp.chat.parser import ChatMessage, ChatParser
from pymtp.text.thinking import ClosedOnce, Thinking


@dataclass(frozen=True)
class Trigger:
    """A text from which on a lazy grammar applies: a word, or a regular expression (ECMAScript) of the whole text."""

    text: str
    is_pattern: bool = False


@dataclass(frozen=True)
class ChatPrompt:
    """What a template makes of a chat."""

    text: str
    """The prompt; without a BOS that `tokenize` adds."""
    parser: Any = field(default=None, compare=False, repr=False)
    """llama.cpp's parser of answers, from which `parse` makes ChatParsers."""
    grammar: str | None = None
    """GBNF that the answer follows, thinking included, with `generation_prompt` in front of it."""
    triggers: tuple[Trigger, ...] = ()
    """If there are any, the grammar applies only from the first on, never inside the thinking."""
    preserved_tokens: tuple[str, ...] = ()
    """Special tokens that are part of the answer's text, for the parser."""
    stop: tuple[str, ...] = ()
    """Texts at which the answer ends."""
    generation_prompt: str = ""
    """The end of `text` that already belongs to the answer."""
    thinking_begin: str = ""
    """What opens the model's thinking; empty if there is none."""
    thinking_ends: tuple[str, ...] = ()
    """What closes it; the first closes it where a budget is used up."""
    ignored: tuple[str, ...] = ()
    """Parts of schemas that the grammar cannot follow, with their places."""

    def closed_once(self, budget: int) -> ClosedOnce | None:
        """A filter that drops closing tags from one answer after a budget (in tokens) closed the thinking."""
        if budget < 0 or not (self.thinking_begin and self.thinking_ends):
            return None
        thinking = Thinking(self.thinking_begin, self.thinking_ends[0], [self.generation_prompt.encode()])
        return ClosedOnce(thinking, self.thinking_ends, budget)

    def parse(self) -> ChatParser:
        """A parser for one answer to this prompt."""
        return ChatParser(self.parser)

    def read(self, text: str, finish_reason: str | None) -> ChatMessage:
        """What an answer that ends here says: reasoning, content, tool calls."""
        if self.parser is None:
            return ChatMessage(text)
        parser = self.parse()
        parser.finish(text, is_cut=finish_reason not in ("eog", "stop"))
        return parser.message
