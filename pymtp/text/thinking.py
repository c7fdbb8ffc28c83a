"""Whether a text is inside its thinking, between tags such as <think> and </think>.

Knows the bytes of tokens; never ids or logits.
"""

from collections.abc import Iterable, Mapping, Sequence

from .stream import overlap

TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)


def tags_of(tokens: Mapping[str, int], template: str | None) -> tuple[str, str] | None:
    """The tags that a model has among its tokens, or else in its chat template; None if it has none."""
    for begin, end in TAGS:
        if begin in tokens and end in tokens:
            return begin, end
    return next(((begin, end) for begin, end in TAGS if template and begin in template and end in template), None)


class Thinking:
    """Follows a text token by token. A tag may span several tokens, or share one with other text."""

    def __init__(self, begin: str, end: str, text: Iterable[bytes] = ()) -> None:
        self.is_inside = False
        """Whether the next token belongs to the thinking."""
        self._tags = {begin.encode(): True, end.encode(): False}
        self._tail = b""
        for piece in text:
            self.observe(piece)

    def observe(self, piece: bytes) -> bool:
        """Continue the text with these bytes, those of special tokens included; return `is_inside`."""
        text = self._tail + piece
        found = max((text.rfind(tag) + len(tag), tag) if tag in text else (0, b"") for tag in self._tags)
        if found[0]:
            self.is_inside = self._tags[found[1]]
            text = text[found[0] :]
        self._tail = text[1 - max(map(len, self._tags)) :]
        return self.is_inside


class ClosedOnce:
    """Leaves out the tags with which a model closes its thinking again, after a budget has closed it.

    The model does not know that, and goes on thinking. `thinking`: its state before the answer; `budget`: in tokens.
    """

    def __init__(self, thinking: Thinking, ends: Sequence[str], budget: int) -> None:
        self._thinking, self._budget = thinking, budget
        self._ends = [end.encode() for end in ends]
        self._n_thought = 0
        self._is_cut = False
        self._held = b""  # may be the start of a tag

    def push(self, piece: bytes) -> bytes:
        """Take the next token's bytes; return those that are certain to be shown."""
        was_inside, is_inside = self._thinking.is_inside, self._thinking.observe(piece)
        if was_inside and not is_inside:
            self._is_cut, self._n_thought = self._n_thought >= self._budget, 0
            return piece
        if is_inside:
            self._n_thought += was_inside
        text, self._held = self._held + piece, b""
        if is_inside or not self._is_cut:
            return text
        for end in self._ends:
            text = text.replace(end, b"")
        n_held = max(overlap(text, end) for end in self._ends)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def flush(self) -> bytes:
        """What was held back: the answer ends here."""
        held, self._held = self._held, b""
        return held
