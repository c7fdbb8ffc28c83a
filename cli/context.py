"""Lines on stderr about the model in use: it is only the embedded one, or the context is longer than it knows.

Knows a path and two numbers; nothing about what fills the context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .output import print_stderr

if TYPE_CHECKING:
    from pymtp import Model


def warn_beyond_training(n_ctx: int | None, n_ctx_train: int, what: str = "a context of") -> None:
    """Print a line on stderr if `n_ctx` tokens are too many; None and 0 stand for a context that is not."""
    if n_ctx and 0 < n_ctx_train < n_ctx:
        print_stderr(
            f"pymtp: {what} {n_ctx} tokens, but the model was trained with {n_ctx_train}: what lies beyond may make "
            "no sense"
        )


def note_room(model: Model) -> None:
    """Print a line on stderr if not all of a model has room on the devices."""
    if model.room_note:
        print_stderr(f"pymtp: {model.room_note} (pymtp inspect shows what goes where)")


TOY = "the embedded one, a toy of 60 million parameters (-m or -hf names another)"


def note_embedded(path: str | None) -> None:
    """Print a line on stderr if no model was named, which None stands for."""
    if path is None:
        print_stderr(f"pymtp: no model given: this is {TOY}")


def note_ignored(model_options: dict[str, Any]) -> None:
    """Print a line on stderr if a draft length was asked for and drafting is off."""
    n = model_options["draft_max"]
    if model_options["draft"] == "none" and n not in ("auto", 0):
        print_stderr(f"pymtp: --draft-max {n} does nothing with --draft none")
