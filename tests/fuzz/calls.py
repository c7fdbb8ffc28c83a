"""Random calls of a session: sound ones, and ones with numbers that are out of range."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk, Session
from pymtp.errors import PymtpError
from pymtp.gguf.facts import model_facts
from pymtp.loader import Weights
from pymtp.loading.params import ModelParams
from random_gguf import N_VOCAB, write_deepseek4, write_gemma4, write_glm4moe, write_mimo2, write_qwen35

from .fuzzer import Fuzzer

_ODD = [-1, -(2**31), 0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 1000, 2**31 - 1]
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


class Calls(Fuzzer):
    """Sequences of calls through the C interface. Afterwards the session decodes as if nothing had been."""

    name = "calls"
    memory_bytes = 2 << 30

    def __init__(self, folder: Path) -> None:
        writers = (write_glm4moe, write_mimo2, write_qwen35, write_deepseek4, write_gemma4)
        self._weights = [
            Weights(model_facts(write(folder / f"{i}.gguf")), ModelParams(), with_heads=True)
            for i, write in enumerate(writers)
        ]
        params = ContextParams(n_ctx=64, n_ubatch=16, n_threads=1, n_seq_max=3)
        self._sessions = [
            Session(one.model, params, n_draft_max=2, model_id="m", uses_heads=one is not self._weights[-1])
            for one in self._weights
        ]
        self._expected = [self._decoded(session) for session in self._sessions]

    def case(self, chance: random.Random) -> tuple[int, list[Call]]:
        return chance.randrange(len(self._sessions)), [_call(chance) for _ in range(chance.randint(1, 12))]

    def run(self, case: tuple[int, list[Call]]) -> str:
        session, n_refused, saved = self._sessions[case[0]], 0, b""
        for name, arguments, options in case[1]:
            try:
                if name.startswith("restore"):
                    arguments = (*arguments, saved)
                result = getattr(session, name)(*arguments, **options)
                if name.startswith("save"):
                    saved = result
                session.logits, session.draft_logits  # noqa: B018
            except (PymtpError, OverflowError):  # cffi refuses what is no int32_t
                n_refused += 1
        for sequence in range(session.n_seq_max):
            session.truncate(0, sequence=sequence)
        if session.n_heads:
            session.limit_drafts(None)
            session.ban_tokens([])
        if self._decoded(session) != self._expected[case[0]]:
            raise AssertionError("the session computes something else afterwards")
        return "all refused" if n_refused == len(case[1]) else "ran"

    def _decoded(self, session: Session) -> list[float]:
        session.decode([Chunk([3, 4, 5], 0, feed=True)])
        found = session.logits[0].tolist()
        session.truncate(0)
        return found  # type: ignore[no-any-return]


def _call(chance: random.Random) -> Call:
    sequence = chance.choice([0, 0, 0, 1, 1, 2, *_ODD[:4], 3])
    kind = chance.randrange(14)
    if kind < 4:
        return ("decode", (_chunks(chance),), {})
    if kind == 4:
        return ("draft_tokens", (_chunks(chance), chance.choice([1, 2, *_ODD[:8]])), {"probs": chance.random() < 0.5})
    if kind == 5:
        return ("draft", (chance.choice([0, 0, 1, *_ODD[:5]]), chance.choice([1, 2, *_ODD[:5]]), _chunks(chance)), {})
    if kind == 6:
        return ("truncate", (chance.choice(_ODD),), {"sequence": sequence})
    if kind == 7:
        return ("copy", (sequence, chance.choice([0, 1, 2, *_ODD[:4]])), {})
    if kind == 8:
        return ("discard", (chance.choice(_ODD), chance.choice(_ODD)), {"sequence": sequence})
    if kind == 9:
        return ("seen_end", (sequence, chance.choice(_ODD)), {})
    if kind == 10:
        return chance.choice([("save", (), {}), ("save_sequence", (sequence,), {})])
    if kind == 11:
        return chance.choice([("restore", (), {}), ("restore_sequence", (sequence,), {})])
    if kind == 12:
        return ("limit_drafts", (chance.choice([None, *_ODD]),), {})
    return ("ban_tokens", ([chance.choice([*_ODD, 5, 6]) for _ in range(chance.randrange(4))],), {})


def _chunks(chance: random.Random) -> list[Chunk]:
    made = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        n = chance.choice([1, 1, 2, 3, 9, 20])
        tokens = [chance.randrange(N_VOCAB) if chance.random() < 0.98 else chance.choice(_ODD) for _ in range(n)]
        position = chance.choice([0, 0, len(tokens), chance.randrange(64), chance.choice(_ODD)])
        sequence = chance.choice([0, 0, 1, 2, chance.choice(_ODD)])
        logits = chance.choice(["last", "all", "none"])
        made.append(Chunk(tokens, position, sequence, logits=logits, feed=chance.random() < 0.7))  # type: ignore[arg-type]
    return made
