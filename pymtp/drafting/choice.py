"""Which drafter a model gets, or why it decodes plainly.

Knows what files say and what was asked for; loads nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from pymtp.drafting.interface import Drafter
from pymtp.drafting.length.policy import AUTO_DRAFT_MAX
from pymtp.drafting.lookup import LookupDrafter
from pymtp.drafting.mtp import MtpDrafter
from pymtp.drafting.params import DraftParams, PlainReason, StrPath
from pymtp.drafting.plain import NoDrafter
from pymtp.errors import UnsupportedModel
from pymtp.gguf.facts import GgufInfo, find_draft_model, inspect_gguf


class DraftChoice(NamedTuple):
    """What drafts for a model."""

    drafter: type[Drafter]
    n_draft_max: int
    """Drafts that a round can verify; 0: plain decoding."""
    reason: PlainReason | None = None
    """Why the model decodes plainly; None: it drafts."""
    note: str | None = None
    """One line for people, where plain decoding is not what they asked for."""

    @property
    def uses_heads(self) -> bool:
        """Whether the model's heads, or its assistant, have to be loaded."""
        return self.drafter.traits.uses_mtp_heads and self.n_draft_max > 0


def choose_drafter(path: StrPath, params: DraftParams) -> tuple[GgufInfo, DraftChoice]:
    """Read the model at `path` and choose what drafts for it.

    Raises ModelError for a file that cannot be used, UnsupportedModel if it must draft with its heads and cannot.
    """
    draft_model, problem = params.draft_model if params.wants_heads else None, None
    if params.wants_heads and draft_model is None:
        draft_model, problem = find_draft_model(path)
    info = inspect_gguf(path, draft_model)
    if params.draft == "mtp" and not info.has_heads:
        raise UnsupportedModel(f"{problem or _no_heads(info)}; use --draft none")
    n_draft_max = longest_draft(params)
    if not isinstance(params.draft, str):
        return info, DraftChoice(params.draft, n_draft_max if params.draft.traits.needs_rollback else 0)
    if n_draft_max == 0 or params.draft == "none":
        return info, _plain(PlainReason.ASKED)
    if params.draft == "lookup":
        return info, DraftChoice(LookupDrafter, n_draft_max)
    if info.has_heads:
        return info, DraftChoice(MtpDrafter, n_draft_max)
    if problem:
        return info, _plain(PlainReason.UNCLEAR_SIDE_FILE, problem)
    if info.n_heads_declared == 0:
        return info, _plain(PlainReason.NO_HEADS)
    return info, _plain(PlainReason.MISSING_TENSORS, _no_heads(info))


def longest_draft(params: DraftParams) -> int:
    """Drafts that a round can verify with these parameters."""
    if params.draft_max != "auto":
        return params.draft_max
    drafter = LookupDrafter if params.draft == "lookup" else params.draft
    own = None if isinstance(drafter, str) else drafter.traits.auto_draft_max
    return AUTO_DRAFT_MAX if own is None else own


def without_runnable_heads(info: GgufInfo, params: DraftParams, obstacle: str) -> DraftChoice:
    """The choice once the model is loaded and llama.cpp cannot run its heads. Raises UnsupportedModel if it must."""
    what = "assistant" if info.has_assistant else "MTP heads"
    reason = f"the pinned llama.cpp cannot run the {what} of this {info.architecture} model ({obstacle})"
    if params.draft == "mtp":
        raise UnsupportedModel(f"{info.path}: {reason}; use --draft none")
    return _plain(PlainReason.NOT_RUNNABLE, reason)


def _plain(reason: PlainReason, why: str | None = None) -> DraftChoice:
    return DraftChoice(NoDrafter, 0, reason, f"{why}: plain decoding" if why else None)


def _no_heads(info: GgufInfo) -> str:
    if info.n_heads_declared:
        details = f"its metadata names {info.n_heads_declared}, it holds the tensors of {info.n_heads}"
    else:
        details = "nextn_predict_layers = 0"
    return f"{info.path} has no usable MTP head ({details})"
