"""What rounds cost on this machine, measured once and kept in a file.

For sequences that must come out the same each time even though their draft length depends on costs. Knows passes and
milliseconds; never text.
"""

from __future__ import annotations

import warnings
from random import Random
from statistics import median
from typing import NamedTuple

from pymtp.drafting.length.costs import RoundCosts
from pymtp.drafting.length.store import Record
from pymtp.engine.chunk import Chunk
from pymtp.engine.session import Session
from pymtp.errors import StateError

N_MEASURED = 3
"""Measurements that count for each draft length, after one that does not."""
N_PROMPT = 32
"""Positions in the cache before the first measured round."""


class PassCosts(NamedTuple):
    """What passes cost."""

    verify_ms: list[float]
    """Verifying 1, 2, ... rows."""
    draft_ms: list[float]
    """Drafting 1, 2, ... steps."""


class CostRecord:
    """The costs of one setup, kept in `record`. `costs` are estimates until `ensure` is called."""

    def __init__(self, record: Record) -> None:
        self.costs = RoundCosts(is_measured=False)
        self._record = record
        self._is_known = False

    def ensure(self, session: Session, slot: int) -> bool:
        """Read the costs from the file, or measure them in sequence `slot` of the session and write the file.

        Returns whether they were measured, which leaves that sequence empty. If the context is too small to measure in,
        they stay estimates.
        """
        n_positions = N_PROMPT + (1 + N_MEASURED) * (1 + session.n_draft_max)
        if self._is_known or session.n_ctx < n_positions:
            return False
        saved = self._read(session.n_draft_max)
        known = saved or self._write(measure(session, slot))
        self.costs.load_measurements(known.verify_ms, known.draft_ms)
        self._is_known = True
        return saved is None

    def _read(self, n_draft_max: int) -> PassCosts | None:
        saved = self._record.read()
        try:
            known = PassCosts([float(ms) for ms in saved["verify_ms"]], [float(ms) for ms in saved["draft_ms"]])
        except (ValueError, KeyError, TypeError):
            return None
        return known if (len(known.verify_ms), len(known.draft_ms)) == (n_draft_max + 1, n_draft_max) else None

    def _write(self, known: PassCosts) -> PassCosts:
        try:
            self._record.write(known._asdict())
        except (OSError, StateError) as error:
            warnings.warn(f"costs are not recorded, a seed may give another text next time: {error}", stacklevel=2)
        return known


def measure(session: Session, slot: int) -> PassCosts:
    """Time rounds that keep all of their drafts, in sequence `slot`, which is empty before and after."""
    tokens = Random(0).choices(range(session.n_draft_vocab), k=session.n_ctx)
    known = PassCosts([], [])
    try:
        for n_draft in range(session.n_draft_max + 1):
            session.truncate(0, sequence=slot)
            session.decode([Chunk(tokens[:N_PROMPT], 0, slot, feed=session.n_heads > 0)])
            starts = [N_PROMPT + i * (n_draft + 1) for i in range(1 + N_MEASURED)]
            times = [_time_round(session, slot, tokens, start, n_draft) for start in starts]
            verify_ms, draft_ms = zip(*times[1:], strict=True)
            known.verify_ms.append(median(verify_ms))
            if n_draft > 0:
                known.draft_ms.append(median(draft_ms))
    finally:
        session.truncate(0, sequence=slot)
    return known


def _time_round(session: Session, slot: int, tokens: list[int], position: int, n_draft: int) -> tuple[float, float]:
    """Run a round whose first row is at `position`; return the milliseconds of verifying its rows, and of drafting."""
    before = session.timing
    feeds = n_draft > 0 and session.n_heads > 0
    for step in range(n_draft if feeds else 0):
        session.draft(step, n_draft, [Chunk([tokens[position + step]], position + step, slot)])
        _ = session.draft_logits  # waits until they are computed
    session.decode([Chunk(tokens[position : position + n_draft + 1], position, slot, "all", feed=feeds)])
    _ = session.logits
    after = session.timing
    return (after.trunk_us - before.trunk_us) / 1000, (after.head_us - before.head_us) / 1000
