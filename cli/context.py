"""The model of a command: found by its flags, loaded, and lines on stderr about it.

Owns the order: what can fail cheaply fails before a model is downloaded, and its header is read before it is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .download import find_model
from .output import print_stderr
from .progress import loading

if TYPE_CHECKING:
    from pymtp import GenerationParams, Model
    from pymtp.gguf.facts import GgufInfo

    from .sampling import Asked

TOY = "the embedded one, a toy of 60 million parameters (-m or -hf names another)"


class Found(NamedTuple):
    """A model that is not loaded yet, and what is asked of it."""

    path: str | None
    """None: the embedded one."""
    info: GgufInfo
    params: GenerationParams


def find(
    path: str | None, hf_repo: str | None, *, offline: bool, model_options: dict[str, Any], asked: Asked, **others: Any
) -> Found:
    """The model that the flags name, downloaded if need be. `others`: fields of GenerationParams.

    Raises InvalidParameter, CommandError and ModelError.
    """
    asked.params(**others)  # a wrong flag shows before a model is downloaded
    return look_at(find_model(path, hf_repo, offline=offline), model_options, asked, **others)


def look_at(path: str | None, model_options: dict[str, Any], asked: Asked, **others: Any) -> Found:
    """The model in a file. See `find`."""
    from pymtp.embedded import model_path
    from pymtp.gguf.facts import model_facts

    # takes milliseconds; a bad file shows at once
    info = model_facts(path or model_path(), model_options["draft_model"] if path else None)
    return Found(path, info, asked.params(info.sampling, **others))


def load(found: Found, model_options: dict[str, Any], **more: Any) -> Model:
    """Load a model, with progress, and note on stderr what people may not expect. Raises what Model raises."""
    import pymtp

    files = {"draft_model": found.info.draft_file} if found.info.draft_file else {}
    with loading(found.path) as on_load:
        model = pymtp.Model(found.info.model_file, **{**model_options, **files}, **more, on_load=on_load)
    note_ignored(model_options)
    warn_beyond_training(model_options["n_ctx"], found.info.n_ctx_train)
    if model.info.draft_model and not model_options["draft_model"]:
        print_stderr(f"pymtp: drafting with {model.info.draft_source}")
    note_room(model)
    if note := model.draft_note or (found.params.draft_note if model.draft_max else None):
        print_stderr(f"pymtp: {note}")
    return model


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


def note_embedded(path: str | None) -> None:
    """Print a line on stderr if no model was named, which None stands for."""
    if path is None:
        print_stderr(f"pymtp: no model given: this is {TOY}")


def note_ignored(model_options: dict[str, Any]) -> None:
    """Print a line on stderr if a draft length was asked for and drafting is off."""
    n = model_options["draft_max"]
    if model_options["draft"] == "none" and n not in ("auto", 0):
        print_stderr(f"pymtp: --draft-max {n} does nothing with --draft none")
