"""What a model takes in a session, on all devices together.

The model's files and the shapes in them say what weights and caches take; the session says it of its compute buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pymtp.engine.session import Session
from pymtp.gguf.facts import GgufInfo, inspect_gguf
from pymtp.gguf.inspection import inspect_model

if TYPE_CHECKING:
    from pymtp.benchmark.plan import Setup


@dataclass(frozen=True)
class Memory:
    """Bytes."""

    weights_bytes: int
    kv_bytes: int
    """K/V and recurrent states."""
    compute_bytes: int
    """Measured, after the work."""

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.kv_bytes + self.compute_bytes


def memory(info: GgufInfo, session: Session, setup: Setup) -> Memory | None:
    """Of a model in a session; None where the heads lie in a file of their own, which says too little about them."""
    has_heads = session.n_draft_max > 0
    if has_heads and info.draft_model:
        return None
    found = inspect_model(
        info.path,
        n_ctx=session.n_ctx * setup.n_parallel,
        n_ubatch=setup.n_ubatch,
        draft_max=session.n_draft_max,
        type_k=setup.type_k,
        type_v=setup.type_v,
    )
    if found.memory is None:
        return None
    # of heads that are not asked for, llama.cpp loads nothing
    spared = 0 if has_heads else sum(head.size_bytes for head in found.heads)
    estimate = found.memory
    return Memory(
        inspect_gguf(info.path).size_bytes - spared,
        estimate.kv_bytes + estimate.state_bytes * setup.n_parallel + (estimate.heads_kv_bytes if has_heads else 0),
        session.compute_bytes,
    )
