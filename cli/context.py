"""Warns of a context that is longer than the model was trained with.

Knows two numbers; nothing about what fills the context.
"""

from __future__ import annotations

from .output import print_stderr


def warn_beyond_training(n_ctx: int | None, n_ctx_train: int, what: str = "a context of") -> None:
    """Print a line on stderr if `n_ctx` tokens are too many; None and 0 stand for a context that is not."""
    if n_ctx and 0 < n_ctx_train < n_ctx:
        print_stderr(
            f"pymtp: {what} {n_ctx} tokens, but the model was trained with {n_ctx_train}: what lies beyond may make "
            "no sense"
        )
