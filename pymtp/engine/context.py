"""How a context is set up: the user's parameters, and the native session that is opened with them.

Owns llama.cpp's structures of parameters. Must not know what runs in a session.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from pymtp.binding.library import ffi, lib, model_pointer
from pymtp.engine.threads import MAX_THREADS, threads_of
from pymtp.errors import FLOAT_MAX, INT_MAX, require
from pymtp.gguf.facts import N_CTX_MAX, context_size
from pymtp.gguf.types import CACHE_TYPES, TYPE_IDS

MAX_SEQUENCES = 256
"""The most that llama.cpp takes."""


@dataclass(frozen=True)
class ContextParams:
    """How a context is set up. Names and meanings are those of llama.cpp."""

    n_ctx: int | None = None
    """Tokens of context of each sequence; None: the model's training context, but at most `n_ctx_max`, and as far as
    there is memory for it (`fit`); 0: all of it."""
    n_ctx_max: int = N_CTX_MAX
    n_cells: int | None = None
    """Tokens that all sequences together can hold, in a cache that they share; 0: n_ctx; None: n_ctx for each."""
    n_batch: int = 2048
    n_ubatch: int = 512
    n_seq_max: int = 1
    """Sequences that are generated together; others wait for a slot."""
    n_threads: int | None = None
    """None: one for each physical core that the process may use, or that `cpu_mask` and `cpu_range` name."""
    n_threads_batch: int | None = None
    """Threads for prompts; None: as for drafts and rounds (`n_threads` and the next two fields)."""
    cpu_mask: str | None = None
    """Processors that the threads may run on, as a hexadecimal number: bit 0 is processor 0; None: any."""
    cpu_range: str | None = None
    """Processors that the threads may run on, as numbers, first-last: 0-3. Combined with `cpu_mask`."""
    cpu_strict: bool = False
    """Each thread has one of these processors to itself; else each may run on all of them."""
    cpu_mask_batch: str | None = None
    """`cpu_mask` for prompts; None, here and below: as for drafts and rounds."""
    cpu_range_batch: str | None = None
    flash_attn: Literal["auto", "on", "off"] = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    rope_scaling: Literal["auto", "none", "linear", "yarn"] = "auto"
    """How positions are scaled; auto, and the defaults of the next seven: as the model says. Also for heads."""
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    """1/N for a context of N times the trained length; 0: as the model says."""
    yarn_orig_ctx: int = 0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_slow: float = -1.0
    yarn_beta_fast: float = -1.0
    offload_kqv: bool = True
    """Each device stores the K and V of its layers, and computes attention; else the host does."""
    moe_cache_mib: int = 0
    """Device memory for recently used experts of layers whose experts stay on the CPU; 0: none."""
    kv_unified: bool = True
    """All sequences share one cache, and so one pass; False: a stream each, so that a sequence's arithmetic never
    depends on its neighbours."""
    invariant: bool = False
    """Also on GPUs (CUDA) a text depends neither on what shares its passes nor on drafts, as on x86 CPUs. Passes take
    longer there. Each sequence has a stream of its own, with all of its positions."""

    def __post_init__(self) -> None:
        for names, least, most in (
            ("n_ctx n_cells yarn_orig_ctx", 0, INT_MAX),
            ("n_ctx_max n_batch n_ubatch", 1, INT_MAX),
            ("n_seq_max", 1, MAX_SEQUENCES),
            ("n_threads n_threads_batch", 1, MAX_THREADS),
            ("moe_cache_mib", 0, INT_MAX),
        ):
            for name in names.split():
                value = getattr(self, name)
                is_number = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
                is_left_out = value is None and getattr(ContextParams, name) is None
                require(is_number or is_left_out, name, f"an integer between {least} and {most}", value)
        for name, least in _ROPE_FLOATS.items():
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= FLOAT_MAX
            require(is_number, name, f"a number from {least:g} on", value)
        for name, choices in _CHOICES.items():
            require(getattr(self, name) in choices, name, "one of " + ", ".join(choices), getattr(self, name))
        for name in ("kv_unified", "offload_kqv", "cpu_strict", "invariant"):
            require(isinstance(getattr(self, name), bool), name, "True or False", getattr(self, name))
        shares = self.n_cells is None or not self.has_streams
        require(shares, "n_cells", "left out with invariant or without kv_unified: sequences share no cache then")
        require(self.flash_attn != "off" or not self.invariant, "flash_attn", "on or auto with invariant", "off")
        is_plain = self.flash_attn != "off" or self.type_v in ("f32", "f16", "bf16")
        require(is_plain, "type_v", "f32, f16 or bf16 without flash attention", self.type_v)
        threads_of(self)  # what the machine does not have shows before a model is loaded

    @property
    def has_streams(self) -> bool:
        """Whether each sequence has a cache of its own."""
        return self.invariant or not self.kv_unified

    @property
    def cache_id(self) -> str:
        """Names how positions are computed and kept; "": by default. What a cache holds depends on it."""
        names = ("rope_scaling", "yarn_orig_ctx", *_ROPE_FLOATS, "flash_attn", "type_k", "type_v", "invariant")
        given = [(name, getattr(self, name)) for name in names if getattr(self, name) != getattr(ContextParams, name)]
        return f" {given}" if given else ""


_FLASH_ATTN = {
    "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}

_ROPE_SCALING = {
    name: getattr(lib, f"LLAMA_ROPE_SCALING_TYPE_{name.upper().replace('AUTO', 'UNSPECIFIED')}")
    for name in ("auto", "none", "linear", "yarn")
}
_CHOICES = {"rope_scaling": _ROPE_SCALING, "flash_attn": _FLASH_ATTN, "type_k": CACHE_TYPES, "type_v": CACHE_TYPES}
_YARN_FLOATS = ("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast")
_ROPE_FLOATS = {"rope_freq_base": 0, "rope_freq_scale": 0, **dict.fromkeys(_YARN_FLOATS, -1)}
"""The least of each."""


def resolved(model: object, params: ContextParams) -> ContextParams:
    """`params` with numbers for what they leave open. Raises InvalidParameter if these do not go together."""
    # llama.cpp rounds its cache up: what was asked for is the limit
    n_ctx = context_size(params.n_ctx, lib.llama_model_n_ctx_train(model_pointer(model)), params.n_ctx_max)
    most = INT_MAX // params.n_seq_max
    require(n_ctx <= most, "n_ctx", f"at most {most} for {params.n_seq_max} sequences", n_ctx)
    n_cells = n_ctx if params.n_cells == 0 else params.n_cells
    return replace(params, n_ctx=n_ctx, n_cells=n_cells)


def session_params(context: ContextParams, n_draft_max: int) -> tuple[Any, list[Any]]:
    """A `pymtp_session_params *` for what `resolved` returned, and what has to live until it was used."""
    params, native = ffi.new("struct pymtp_session_params *"), native_params(context, n_draft_max)
    params.context, params.n_draft_max, params.n_ctx_seq = native, n_draft_max, context.n_ctx
    params.is_invariant = context.invariant
    threads = threads_of(context)
    if not any(each.processors for each in threads):
        return params, [native]
    pools = [each.native(is_strict=context.cpu_strict) for each in threads]
    params.threads, params.threads_batch = pools
    return params, [native, *pools]


def native_params(params: ContextParams, n_draft_max: int) -> Any:
    """A `llama_context_params *` for `params.n_seq_max` sequences that verify `n_draft_max` drafts each."""
    native = ffi.new("struct llama_context_params *", lib.llama_context_default_params())
    native.n_ctx = params.n_cells or (params.n_ctx or 0) * params.n_seq_max
    # a round of all sequences is one ubatch; llama.cpp wants one row more where it keeps recurrent states
    n_verified = n_draft_max + 2 if n_draft_max else 1
    native.n_ubatch = max(params.n_ubatch, n_verified * params.n_seq_max)
    native.n_batch = max(params.n_batch, native.n_ubatch)
    native.n_seq_max = params.n_seq_max
    native.kv_unified = not params.has_streams
    rounds, prompts = threads_of(params)
    native.n_threads, native.n_threads_batch = rounds.n_threads, prompts.n_threads
    # keep the window and no more, as llama.cpp's own programs do; its cells are taken in another order with drafts
    native.swa_full = params.invariant
    native.flash_attn_type = _FLASH_ATTN["on" if params.invariant else params.flash_attn]
    native.type_k, native.type_v = TYPE_IDS[params.type_k], TYPE_IDS[params.type_v]
    native.rope_scaling_type = _ROPE_SCALING[params.rope_scaling]
    for name in (*_ROPE_FLOATS, "yarn_orig_ctx", "offload_kqv"):
        setattr(native, name, getattr(params, name))
    native.moe_cache_size = params.moe_cache_mib << 20
    native.no_perf = False
    return native
