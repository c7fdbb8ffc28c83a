"""The interface of the compared schemes, and the schemes that run on pymtp's sessions.

Knows passes and token ids; no clock, and no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from pymtp import Chunk, ContextParams, Session

from .scripted import ScriptedRound


@dataclass(frozen=True)
class Work:
    """Counts of what a scheme has done. A pass is one graph run."""

    trunk_builds: float = 0
    """Graphs of the trunk that were built and not reused."""
    head_builds: float = 0
    head_passes: float = 0
    hidden_bytes: float = 0
    """Hidden states copied between host and device."""
    output_bytes: float = 0
    """Logits and drafts copied to the host."""

    def per_round(self, before: Work, n_rounds: int) -> Work:
        """The mean of the `n_rounds` rounds since `before`."""
        return Work(*((getattr(self, f.name) - getattr(before, f.name)) / n_rounds for f in fields(Work)))


class Scheme(Protocol):
    """One way to decode a sequence, in its own contexts. Picks are the most likely tokens."""

    name: str

    def begin(self, prompt: Sequence[int]) -> int:
        """Clear the cache, decode `prompt`, and return the pick after it."""

    def draft(self, newest: int, position: int, n: int) -> list[int]:
        """Draft `n` tokens after `newest`, which is at `position` and not decoded yet."""

    def verify(self, tokens: Sequence[int], position: int) -> list[int]:
        """Decode `tokens` from `position` on, and return the pick after each."""

    def truncate(self, position: int) -> None:
        """Drop the positions from `position` on."""

    def work(self) -> Work:
        """The counts so far."""

    def close(self) -> int:
        """Free the contexts, and return the bytes of their graphs' compute buffers."""


@dataclass(frozen=True)
class Played:
    """The result of a round."""

    drafts: list[int]
    picks: list[int]

    def follows(self, script: ScriptedRound) -> bool:
        """Whether the target accepts exactly the scripted drafts."""
        accepted = [draft == pick for draft, pick in zip(script.drafts, self.picks, strict=False)]
        return [*accepted, False].index(False) == script.n_right


def play(scheme: Scheme, script: ScriptedRound) -> Played:
    """Draft, verify the scripted drafts instead, pick after each row, and roll back."""
    n_draft = len(script.drafts)
    drafts = scheme.draft(script.newest, script.position, n_draft) if n_draft else []
    picks = scheme.verify([script.newest, *script.drafts], script.position)
    if n_draft:
        scheme.truncate(script.end)
    return Played(drafts, picks)


class Plain:
    """Plain decoding: a session without heads."""

    name = "plain"

    def __init__(self, model: object, params: ContextParams, n_draft_max: int = 0) -> None:
        self._session = Session(model, params, n_draft_max=n_draft_max)
        self._n_batch = params.n_batch
        self._feed = n_draft_max > 0

    def begin(self, prompt: Sequence[int]) -> int:
        """See Scheme."""
        self._session.truncate(0)
        for start in range(0, len(prompt), self._n_batch):
            part = prompt[start : start + self._n_batch]
            self._session.decode([Chunk(part, start, feed=self._feed)])
        return int(self._session.logits[-1].argmax())

    def draft(self, newest: int, position: int, n: int) -> list[int]:
        """See Scheme."""
        raise NotImplementedError("plain decoding drafts nothing")

    def verify(self, tokens: Sequence[int], position: int) -> list[int]:
        """See Scheme."""
        self._session.decode([Chunk(tokens, position, logits="all", feed=self._feed)])
        return self._session.logits.argmax(axis=1).tolist()  # type: ignore[no-any-return]

    def truncate(self, position: int) -> None:
        """See Scheme."""
        self._session.truncate(position)

    def work(self) -> Work:
        """See Scheme."""
        counters = self._session.counters
        return Work(
            trunk_builds=counters.n_trunk_builds,
            head_builds=counters.n_head_builds,
            head_passes=counters.n_head_passes,
            output_bytes=counters.n_output_bytes,
        )

    def close(self) -> int:
        """See Scheme."""
        n_bytes = self._session.compute_bytes
        self._session.close()
        return n_bytes


class StepByStep(Plain):
    """pymtp with one pass per draft; the host picks."""

    name = "step by step"

    def draft(self, newest: int, position: int, n: int) -> list[int]:
        """See Scheme."""
        tokens = [newest]
        for step in range(n):
            self._session.draft(step, n, [Chunk(tokens[-1:], position + step)])
            tokens.append(int(self._session.draft_logits[0].argmax()))
        return tokens[1:]


class Fused(Plain):
    """pymtp with all drafts in one pass; the graph picks."""

    name = "fused"

    def draft(self, newest: int, position: int, n: int) -> list[int]:
        """See Scheme."""
        return self._session.draft_tokens([Chunk([newest], position)], n)[0][0]
