"""The keywords of `Model`: fields of ModelParams, ContextParams and DraftParams."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple, TypedDict

from pymtp.drafting.interface import Drafter
from pymtp.drafting.params import DraftParams
from pymtp.engine.context import ContextParams
from pymtp.errors import require
from pymtp.loading.params import LoadMode, ModelParams, Numa, SplitMode
from pymtp.serving.params import check_names
from pymtp.text.files import StrPath


class ModelOptions(TypedDict, total=False):
    """What `Model` takes after a path, as keywords."""

    n_gpu_layers: int
    device: Sequence[str] | None
    rpc: Sequence[str]
    split_mode: SplitMode
    tensor_split: Sequence[float]
    main_gpu: int
    override_tensor: Sequence[tuple[str, str]]
    cpu_moe: bool
    n_cpu_moe: int
    fit: bool
    fit_target: Sequence[int]
    fit_ctx: int
    load_mode: LoadMode
    override_kv: Sequence[tuple[str, int | float | bool | str]]
    lora: Sequence[StrPath | tuple[StrPath, float]]
    mmproj: StrPath | None
    image_min_tokens: int | None
    image_max_tokens: int | None
    numa: Numa
    chat_template: str | None
    n_ctx: int | None
    n_ctx_max: int
    n_cells: int | None
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_threads: int | None
    n_threads_batch: int | None
    cpu_mask: str | None
    cpu_range: str | None
    cpu_strict: bool
    cpu_mask_batch: str | None
    cpu_range_batch: str | None
    flash_attn: Literal["auto", "on", "off"]
    type_k: str
    type_v: str
    rope_scaling: Literal["auto", "none", "linear", "yarn"]
    rope_freq_base: float
    rope_freq_scale: float
    yarn_orig_ctx: int
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_slow: float
    yarn_beta_fast: float
    offload_kqv: bool
    moe_cache_mib: int
    kv_unified: bool
    invariant: bool
    draft: Literal["auto", "mtp", "lookup", "none"] | type[Drafter]
    draft_model: StrPath | None
    draft_max: int | Literal["auto"]
    draft_lookup: Literal["off", "self", "shared"]
    draft_vocab: int | Sequence[int] | Literal["auto", "all"]
    mtp_context: Literal["auto", "chained", "target"]
    draft_hints: bool


class Params(NamedTuple):
    """How a model is loaded and run."""

    model: ModelParams
    context: ContextParams
    drafting: DraftParams


def merge_options(params: Params, options: Mapping[str, Any]) -> Params:
    """`params` with fields replaced.

    Raises TypeError for an unknown name, InvalidParameter for a value out of range.
    """
    kinds = (ModelParams, ContextParams, DraftParams)
    for name, part, kind in zip(Params._fields, params, kinds, strict=True):
        require(isinstance(part, kind), name, f"of the class {kind.__name__}", part)
    check_names(options, {"hf", *(each.name for kind in kinds for each in fields(kind))})

    def changed(part: Any) -> Any:
        return replace(part, **{each.name: options[each.name] for each in fields(part) if each.name in options})

    return Params(*map(changed, params))
