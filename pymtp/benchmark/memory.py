"""The memory of a model in a session, on all devices together.

Weights and caches are computed from the model's files; compute buffers are reported by the session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pymtp.engine.session import Session
from pymtp.gguf.facts import GgufInfo
from pymtp.inspection import inspect_model

if TYPE_CHECKING:
    from pymtp.benchmark.experiment import Variant


@dataclass(frozen=True)
class Memory:
    """Bytes."""

    weights_bytes: int
    kv_bytes: int
    """K/V and recurrent states."""
    compute_bytes: int
    """Measured after the tests."""

    @property
    def total_bytes(self) -> int:
        """The sum."""
        return self.weights_bytes + self.kv_bytes + self.compute_bytes


def memory(info: GgufInfo, session: Session, variant: Variant) -> Memory | None:
    """The memory of a model in a session; None if the heads are in a separate file, which shows too little of it."""
    has_heads = session.n_draft_max > 0
    if has_heads and info.draft_model:
        return None
    found = inspect_model(
        info.model_file,
        n_ctx=session.n_ctx * variant.n_parallel,
        n_ubatch=variant.n_ubatch,
        draft_max=session.n_draft_max,
        type_k=variant.type_k,
        type_v=variant.type_v,
    )
    if found.memory is None:
        return None
    # llama.cpp does not load heads that are not used
    unused_bytes = 0 if has_heads else sum(head.size_bytes for head in found.heads)
    estimate = found.memory
    return Memory(
        found.info.size_bytes - unused_bytes,
        estimate.kv_bytes + estimate.state_bytes * variant.n_parallel + (estimate.heads_kv_bytes if has_heads else 0),
        session.compute_bytes,
    )
