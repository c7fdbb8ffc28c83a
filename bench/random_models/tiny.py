"""A tiny model with random F32 weights: one MTP head, and rounds of about a millisecond.

So small that the overhead of a round shows.
"""

from __future__ import annotations

from pathlib import Path

from .shapes import Size
from .writer import write_model

TINY = Size(
    architecture="glm4moe",
    n_layer=4,
    n_heads=1,
    n_embd=256,
    n_head=4,
    n_head_kv=2,
    head_size=64,
    n_ff=512,
    n_vocab=1024,
    n_expert=8,
    n_expert_used=2,
    n_ff_expert=128,
)


def write_tiny(path: Path) -> Path:
    """Write the model to `path`."""
    return write_model(path, TINY, None)
