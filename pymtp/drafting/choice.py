"""Which drafter a model gets, and what people should know where it is not the heads.

Knows what files say and what was asked for; loads nothing.
"""

from typing import NamedTuple

from pymtp.drafting.adaptive import AdaptiveDrafter
from pymtp.drafting.interface import Drafter, NoDrafter
from pymtp.drafting.lookup import EarlierTexts, LookupDrafter
from pymtp.drafting.mtp import MtpDrafter
from pymtp.drafting.params import DraftParams
from pymtp.drafting.policy import AUTO_DRAFT_MAX, LENGTHS
from pymtp.drafting.text_vocab import pays
from pymtp.engine.session import Session
from pymtp.errors import UnsupportedModel
from pymtp.gguf.facts import GgufInfo, find_draft_model, model_facts
from pymtp.gguf.model_file import read_model
from pymtp.text.files import StrPath


class DraftChoice(NamedTuple):
    """What drafts for a model."""

    drafter: type[Drafter]
    n_draft_max: int
    """Drafts that a round can verify; 0: plain decoding."""
    note: str | None = None
    """One line for people, where they did not get the heads that they may expect."""
    adds_lookup: bool = False
    """Whether lookup drafts as well as the heads."""

    def n_draft_of_session(self, params: DraftParams, n_seq_max: int, *, has_states: bool) -> int:
        """Drafts that a round of each sequence can verify; each needs memory: logits, and recurrent states."""
        if params.draft_max != "auto":
            return self.n_draft_max
        n = 0 if has_states else AUTO_DRAFT_MAX // n_seq_max
        return min(self.n_draft_max, max(n, LENGTHS[1]))

    def make(self, session: Session, earlier: EarlierTexts | None = None) -> Drafter:
        """The drafter, for a session that was opened for it. `earlier`: texts that lookup searches as well."""
        if self.drafter not in (MtpDrafter, LookupDrafter):
            return self.drafter(session)
        heads = MtpDrafter(session) if self.drafter is MtpDrafter else None
        looks = heads is None or self.adds_lookup
        return AdaptiveDrafter(session, heads, LookupDrafter(session, earlier) if looks else None)

    def follows_texts(self, info: GgufInfo, params: DraftParams) -> bool:
        """Whether heads draft from a part of the vocabulary that follows the texts."""
        return self.drafter is MtpDrafter and self.uses_heads and params.draft_vocab == "auto" and pays(info)

    @property
    def uses_heads(self) -> bool:
        """Whether the model's heads, or its assistant, have to be loaded."""
        return self.drafter.traits.uses_mtp_heads and self.n_draft_max > 0


def choose_drafter(path: StrPath, params: DraftParams) -> tuple[GgufInfo, DraftChoice]:
    """Read the model at `path` and choose what drafts for it.

    Raises ModelError for a file that cannot be used, UnsupportedModel if it must draft with its heads and cannot.
    """
    model, problem = read_model(path), None
    draft_model = params.draft_model if params.wants_heads else None
    if params.wants_heads and draft_model is None:
        draft_model, problem = find_draft_model(model)
    info = model_facts(model, draft_model)
    if params.draft == "mtp" and not info.has_heads:
        raise UnsupportedModel(f"{problem or _no_heads(info)}; use --draft none")
    n_draft_max = longest_draft(params)
    if not isinstance(params.draft, str):
        return info, DraftChoice(params.draft, n_draft_max if params.draft.traits.needs_rollback else 0)
    if n_draft_max == 0 or params.draft == "none":
        return info, DraftChoice(NoDrafter, 0)
    if params.draft == "lookup":
        return info, DraftChoice(LookupDrafter, n_draft_max)
    if info.has_heads:
        return info, DraftChoice(MtpDrafter, n_draft_max, adds_lookup=params.draft_lookup != "off")
    return info, _without_heads(params, problem or (_no_heads(info) if info.n_heads_declared else None))


def longest_draft(params: DraftParams) -> int:
    """Drafts that a round can verify with these parameters."""
    if params.draft_max != "auto":
        return params.draft_max
    own = None if isinstance(params.draft, str) else params.draft.traits.auto_draft_max
    return AUTO_DRAFT_MAX if own is None else own


def without_runnable_heads(info: GgufInfo, params: DraftParams, obstacle: str) -> DraftChoice:
    """The choice once the model is loaded and llama.cpp cannot run its heads. Raises UnsupportedModel if it must."""
    what = "assistant" if info.has_assistant else "MTP heads"
    reason = f"the pinned llama.cpp cannot run the {what} of this {info.architecture} model ({obstacle})"
    if params.draft == "mtp":
        raise UnsupportedModel(f"{info.path}: {reason}; use --draft none")
    return _without_heads(params, reason)


def without_rollback(info: GgufInfo, params: DraftParams) -> DraftChoice:
    """The choice for a model that cannot go back over rejected drafts. Raises UnsupportedModel if it must draft."""
    reason = f"llama.cpp keeps no snapshots of the states of {info.architecture} models, to take drafts back"
    if params.draft != "auto":
        raise UnsupportedModel(f"{info.path}: {reason}; use --draft none")
    return DraftChoice(NoDrafter, 0, f"{reason}: plain decoding" if info.n_heads_declared else None)


def _without_heads(params: DraftParams, why: str | None) -> DraftChoice:
    """Lookup drafts where the length adapts; a number of drafts in each round is meant for heads."""
    if params.draft_lookup != "off" and params.draft_max == "auto":
        return DraftChoice(LookupDrafter, AUTO_DRAFT_MAX, note=f"{why}: drafts by lookup only" if why else None)
    return DraftChoice(NoDrafter, 0, f"{why}: plain decoding" if why else None)


def _no_heads(info: GgufInfo) -> str:
    if info.n_heads_declared:
        details = f"its metadata names {info.n_heads_declared}, it holds the tensors of {info.n_heads}"
    else:
        details = "nextn_predict_layers = 0"
    return f"{info.path} has no usable MTP head ({details})"
