"""The memory of a model in a session, on all devices together.

Weights and caches are computed from the model's files; compute buffers are reported by the session, after the tests.
"""

from __future__ import annotations

from pymtp.benchmark.experiment import Variant
from pymtp.engine.session import Session
from pymtp.gguf.facts import GgufInfo
from pymtp.inspection import inspect_model


def memory_bytes(info: GgufInfo, session: Session, variant: Variant) -> int | None:
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
    if (estimate := found.memory) is None:
        return None
    # llama.cpp does not load heads that are not used
    unused_bytes = 0 if has_heads else sum(head.size_bytes for head in found.heads)
    states_bytes = estimate.state_bytes * variant.n_parallel
    cache_bytes = estimate.kv_bytes + states_bytes + (estimate.heads_kv_bytes if has_heads else 0)
    return found.info.size_bytes - unused_bytes + cache_bytes + session.compute_bytes
