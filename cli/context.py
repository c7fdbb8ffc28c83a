"""The model of a command: found by its flags, loaded, and lines on stderr about it.

Owns what flags of a model may say together, and the order: what can fail cheaply fails before a model is downloaded,
and its header is read before it is loaded.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

import pymtp
from pymtp.embedded import model_path
from pymtp.gguf.facts import model_facts
from pymtp.gguf.model_file import read_model

from .asked import asked_of, params_of
from .flags import Values
from .output import can_redraw, print_note
from .progress import loading

TOY = "the embedded one, a toy of 60 million parameters (-m or -hf names another)"


def prepare_library(own: Values) -> None:
    """What --debug and --verbose ask of the native library. Before anything is loaded."""
    if not own.debug:
        pymtp.exit_on_abort()
    if own.verbose:
        pymtp.set_log_level("info")


def named_model(own: Values) -> str | None:
    """The model that is named as an argument, or with -m. Raises BadParameter for both."""
    first: str | None = own.model
    if first is not None and own.model_file is not None:
        both = f"({first!r} and {own.model_file!r})"
        raise typer.BadParameter(f"give the model as an argument or with -m, not both {both}")
    return own.model_file or first


class Found:
    """A model that is not loaded yet, and what is asked of it; it is downloaded if need be."""

    def __init__(self, own: Values, path: str | None, **others: Any) -> None:
        """Of the flags of a command. `others`: fields of GenerationParams.

        Raises InvalidParameter, CommandError and ModelError.
        """
        asked = asked_of(own, **others)
        self.setup = params_of(own)
        """How it is loaded and run."""
        self.path = find_model(path, own.hf, offline=own.offline)
        """None: the embedded one."""
        # takes milliseconds; a bad file shows at once
        file = read_model(self.path or model_path(), dict(self.setup.model.override_kv))
        self.info = model_facts(file, self.setup.drafting.draft_model if self.path else None)
        self.params = asked(self.info.sampling)
        self.has_chat_template = (self.setup.model.chat_template or self.info.chat_template) is not None
        """Whether there is one, of the model or in its place."""

    def warn_beyond_training(self) -> None:
        """See below; positions that are scaled by hand reach as far as that makes them."""
        context = self.setup.context
        warn_beyond_training(context.n_ctx, int(self.info.n_ctx_train / (context.rope_freq_scale or 1)))


def find_model(path: str | None, hf_repo: str | None, *, offline: bool, headers_in: Path | None = None) -> str | None:
    """The path of the model that the command line names, downloaded if need be; None: the embedded model.

    `headers_in`: see pymtp.hub.resolve.
    """
    if hf_repo is None:
        return path
    if path is not None:
        raise typer.BadParameter(f"give the model as a file or with -hf, not both ({path!r} and {hf_repo!r})")
    from huggingface_hub.utils import disable_progress_bars, logging  # type: ignore[attr-defined]  # documented

    from pymtp.hub import resolve

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # its warnings repeat what our errors say
    if not can_redraw(sys.stderr):
        disable_progress_bars()
    return str(resolve(hf_repo, offline=offline, headers_in=headers_in))


def load(found: Found) -> "pymtp.Model":
    """Load a model, with progress, and note on stderr what people may not expect. Raises what Model raises."""
    params, context, asked = found.setup
    drafting = replace(asked, draft_model=found.info.draft_file or asked.draft_model)
    with loading(found.path) as on_load:
        file = found.info.model_file
        model = pymtp.Model(file, model=params, context=context, drafting=drafting, on_load=on_load)
    if asked.draft == "none" and asked.draft_max not in ("auto", 0):
        print_note(f"--draft-max {asked.draft_max} does nothing with --draft none")
    found.warn_beyond_training()
    if model.info.draft_model and not asked.draft_model:
        what = "assistant" if model.info.has_assistant else "MTP heads"
        print_note(f"drafting with the {what} in {model.info.draft_model}")
    note_room(model)
    if note := model.draft_note or (found.params.draft_note if model.draft_max else None):
        print_note(note)
    return model


def warn_beyond_training(n_ctx: int | None, n_ctx_train: int, what: str = "a context of") -> None:
    """Print a line on stderr if `n_ctx` tokens are too many; None and 0 stand for a context that is not."""
    if n_ctx and 0 < n_ctx_train < n_ctx:
        trained = f"but the model was trained with {n_ctx_train}: what lies beyond may make no sense"
        print_note(f"{what} {n_ctx} tokens, {trained}")


def note_room(model: "pymtp.Model") -> None:
    """Print a line on stderr if not all of a model has room on the devices."""
    if model.room_note:
        print_note(f"{model.room_note} (pymtp inspect shows what goes where)")


def note_embedded(path: str | None) -> None:
    """Print a line on stderr if no model was named, which None stands for."""
    if path is None:
        print_note(f"no model given: this is {TOY}")
