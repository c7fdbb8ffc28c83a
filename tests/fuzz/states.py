"""Damaged states of sessions and of single sequences, most of them signed again, so that they reach the engine."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from pymtp.binding.library import abi_id
from pymtp.engine import snapshot
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk, Session
from pymtp.errors import PymtpError, StateError
from pymtp.gguf.facts import model_facts
from pymtp.loader import Weights
from pymtp.loading.params import ModelParams
from random_gguf import write_glm4moe, write_mimo2, write_qwen35

from .fuzzer import Fuzzer, damaged

K = 2
WHO = {"engine": abi_id(), "model": "m"}


@dataclass
class Case:
    """Bytes, and the session that is to restore them."""

    session: int
    data: bytes
    sequence: int | None
    """None: the state of a whole session."""


class States(Fuzzer):
    """Restores them in sessions of a plain, a sliding-window and a hybrid model, which have to work afterwards."""

    name = "states"

    def __init__(self, folder: Path) -> None:
        self._weights = [
            Weights(model_facts(write(folder / f"{i}.gguf")), ModelParams(), with_heads=True)
            for i, write in enumerate((write_glm4moe, write_mimo2, write_qwen35))
        ]
        params = ContextParams(n_ctx=64, n_ubatch=32, n_threads=1, n_seq_max=2)
        self._sessions = [Session(one.model, params, n_draft_max=K, model_id="m") for one in self._weights]
        self._saved: list[tuple[int, bytes, int | None]] = []
        self._expected: list[list[float]] = []
        for i, session in enumerate(self._sessions):
            for n in (1, 7, 30):
                _clear(session)
                session.decode([Chunk(list(range(n)), 0, feed=True), Chunk([4, 5], 0, sequence=1, feed=True)])
                self._saved += [(i, session.save(), None), (i, session.save_sequence(0), 0)]
            self._expected.append(self._after(i))

    def case(self, chance: random.Random) -> Case:
        i, data, sequence = chance.choice(self._saved)
        kind = chance.randrange(10)
        if kind < 2:
            data = damaged(chance, data)
        elif kind == 2:
            line, _, payload = data.partition(b"\n")
            data = damaged(chance, line) + b"\n" + payload
        else:
            data = _signed_again(chance, data)
        if chance.random() < 0.05:
            i = chance.randrange(len(self._sessions))
        if sequence is not None:
            sequence = chance.choice([0, 0, 1, -1, 2])
        elif chance.random() < 0.05:
            sequence = 0
        return Case(i, data, sequence)

    def run(self, case: Case) -> str:
        session = self._sessions[case.session]
        outcome = "refused"
        try:
            if case.sequence is None:
                session.restore(case.data)
            else:
                session.restore_sequence(case.sequence, case.data)
            outcome = "restored"
            _use(session)
        except PymtpError as error:
            if outcome == "restored":
                outcome = "restored, no use"
            elif not isinstance(error, StateError) and case.sequence in (None, 0, 1):
                raise
        _clear(session)
        if self._after(case.session) != self._expected[case.session]:
            raise AssertionError("the session computes something else afterwards")
        return outcome

    def _after(self, i: int) -> list[float]:
        """Logits of a text that is decoded from its beginning."""
        session = self._sessions[i]
        _clear(session)
        session.decode([Chunk([3, 4, 5], 0, feed=True)])
        found = session.logits[0].tolist()
        session.truncate(0)
        return found  # type: ignore[no-any-return]


def _signed_again(chance: random.Random, data: bytes) -> bytes:
    payload = data[data.index(b"\n") + 1 :]
    # the header, cells and hidden rows are at both ends; between them lie K and V, whose values may be any
    n = min(chance.choice([28, 128, 400]), len(payload))
    place = chance.randrange(3)
    if place == 0:
        payload = damaged(chance, payload[:n], 2) + payload[n:]
    elif place == 1:
        payload = payload[:-n] + damaged(chance, payload[-n:], 2)
    else:
        at = chance.randrange(len(payload) - n + 1)
        payload = payload[:at] + damaged(chance, payload[at : at + n], 1) + payload[at + n :]
    return snapshot.pack(payload, **WHO)


def _clear(session: Session) -> None:
    for sequence in range(session.n_seq_max):
        session.truncate(0, sequence=sequence)


def _use(session: Session) -> None:
    """A round of every sequence, at the position that it says is its next."""
    for sequence in range(session.n_seq_max):
        end = max(session.seen_end(sequence, session.n_heads), 0)
        drafts, _ = session.draft_tokens([Chunk([3], end, sequence=sequence)], K)
        session.decode([Chunk([3, *drafts[0]], end, sequence=sequence, logits="all", feed=True)])
        session.truncate(end + 1, sequence=sequence)
