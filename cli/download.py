"""The model that the command line names: a file, a repository on the Hugging Face Hub, or none.

Owns what the flags may say together, and how a download is shown. pymtp.hub finds and downloads.
"""

from __future__ import annotations

import sys

import typer

from .output import can_redraw


def find_model(path: str | None, hf_repo: str | None, *, offline: bool) -> str | None:
    """The path of the model that the command line names, downloaded if need be; None: the embedded model."""
    if hf_repo is None:
        if offline:
            raise typer.BadParameter("--offline needs -hf USER/REPO")
        return path
    if path is not None:
        raise typer.BadParameter(f"give the model as a file or with -hf, not both ({path!r} and {hf_repo!r})")
    from huggingface_hub.utils import disable_progress_bars, logging  # type: ignore[attr-defined]  # documented

    from pymtp.hub import resolve

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # its warnings repeat what our errors say
    if not can_redraw(sys.stderr):
        disable_progress_bars()
    return str(resolve(hf_repo, offline=offline))
