"""One context of the engine: passes of the trunk and of the MTP heads over rows of tokens.

Owns the native handle. Knows token ids, positions and logits; never text, sampling or drafting policy.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import psutil
from gguf.constants import GGMLQuantizationType

from pymtp._library import ffi, lib, llama_cpp
from pymtp.errors import BackendError, ContextFull, InvalidParameter, PymtpError

Logits = npt.NDArray[np.float32]

_ERRORS: dict[int, type[PymtpError]] = {
    lib.PYMTP_FULL: ContextFull,
    lib.PYMTP_INVALID: PymtpError,
    lib.PYMTP_FAILED: BackendError,
}


MAX_TOKENS = 2**31 - 1
MAX_THREADS = 512
"""The most that ggml takes."""


@dataclass(frozen=True)
class ContextParams:
    """How a context is set up. Names and meanings are those of llama.cpp."""

    n_ctx: int = 4096
    """Tokens of context per sequence; 0 takes the model's training context."""
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int | None = None
    """None: one for each physical core that the process may use."""
    flash_attn: Literal["auto", "on", "off"] = "auto"
    type_k: str = "f16"
    type_v: str = "f16"

    def __post_init__(self) -> None:
        for name, least, most in (
            ("n_ctx", 0, MAX_TOKENS),
            ("n_batch", 1, MAX_TOKENS),
            ("n_ubatch", 1, MAX_TOKENS),
            ("n_threads", 1, MAX_THREADS),
        ):
            value = getattr(self, name)
            if value is None and name == "n_threads":
                continue
            if not isinstance(value, int) or not least <= value <= most:
                raise InvalidParameter(name, f"an integer between {least} and {most}", value=value)
        if self.flash_attn not in _FLASH_ATTN:
            raise InvalidParameter("flash_attn", "one of " + ", ".join(_FLASH_ATTN), value=self.flash_attn)
        for name in ("type_k", "type_v"):
            if getattr(self, name) not in KV_TYPES:
                raise InvalidParameter(name, "one of " + ", ".join(KV_TYPES), value=getattr(self, name))
        if self.flash_attn == "off" and self.type_v not in ("f32", "f16", "bf16"):
            raise InvalidParameter("type_v", "f32, f16 or bf16 without flash attention", value=self.type_v)


KV_TYPES = {
    name: GGMLQuantizationType[name.upper()]
    # those that llama.cpp's own command line accepts
    for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
}

_FLASH_ATTN = {
    "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}


@dataclass(frozen=True)
class Counters:
    """What the engine has done since the session began. A pass is one graph run; times in microseconds."""

    n_trunk_passes: int
    n_head_passes: int
    n_catch_up_passes: int
    n_trunk_builds: int
    n_head_builds: int
    t_trunk_us: int
    t_head_us: int


class Session:
    """A context in which the trunk and, with `n_draft_max` > 0, the model's MTP heads run.

    `model` is llama-cpp-python's handle of a model, loaded with `load_mtp` if it is to draft. Every
    pass takes the tokens of one sequence at consecutive positions. Raises ContextFull when the
    cache has no room (the session is then as before), BackendError when the backend fails.
    """

    def __init__(self, model: object, params: ContextParams, *, n_draft_max: int = 0, n_seq_max: int = 1) -> None:
        native = _native_params(params, n_draft_max, n_seq_max)
        address = ctypes.cast(model, ctypes.c_void_p).value  # type: ignore[arg-type]
        handle = ffi.new("struct pymtp_session **")
        status = lib.pymtp_session_init(
            ffi.cast("struct llama_model *", address),
            ffi.cast("struct llama_context_params *", ctypes.addressof(native)),
            n_draft_max,
            handle,
        )
        _check(status)
        self._native_handle = handle[0]
        self._free = weakref.finalize(self, lib.pymtp_session_free, handle[0])
        context = lib.pymtp_session_context(self._handle)
        # llama.cpp rounds its cache up: what was asked for is the limit
        self.n_ctx: int = params.n_ctx or llama_cpp.llama_n_ctx_seq(int(ffi.cast("intptr_t", context)))
        """Positions that a sequence can hold."""
        self.n_ubatch: int = llama_cpp.llama_n_ubatch(int(ffi.cast("intptr_t", context)))
        """Rows that are computed at once; `decode` takes more."""
        self.n_draft_max: int = lib.pymtp_session_n_draft_max(self._handle)
        """Tokens that can be drafted ahead; 0 if the session does not draft."""
        self.mtp_memory: Literal["shared", "none"] = (
            "shared" if lib.pymtp_session_memory(self._handle) == lib.PYMTP_MEMORY_SHARED else "none"
        )
        """Where the MTP layers keep their K/V: in the trunk's cache, or nowhere."""

    def decode(
        self,
        tokens: Sequence[int],
        position: int,
        *,
        sequence: int = 0,
        logits: Literal["all", "last", "none"] = "last",
        prompt: bool = False,
    ) -> None:
        """Run the trunk over `tokens` at `position` and the positions that follow.

        `prompt` rows go through the MTP heads as well, which fills the heads' cache.
        """
        n, end = len(tokens), position + len(tokens)
        flags = [lib.PYMTP_ROW_PROMPT if prompt else 0] * n
        for row in range(n) if logits == "all" else range(max(n - 1, 0), n) if logits == "last" else ():
            flags[row] |= lib.PYMTP_ROW_LOGITS
        _check(lib.pymtp_session_decode(self._handle, n, tokens, list(range(position, end)), [sequence] * n, flags))

    def draft(self, head: int, tokens: Sequence[int], position: int, *, sequence: int = 0) -> None:
        """Run an MTP head over `tokens`, whose last row's logits predict the token that follows.

        The row at position j pairs its token with the hidden state of j - 1, which must be at hand.
        """
        n, end = len(tokens), position + len(tokens)
        _check(lib.pymtp_session_draft(self._handle, head, n, tokens, list(range(position, end)), [sequence] * n))

    def draft_greedy(self, head: int, tokens: Sequence[int], position: int, n_drafts: int) -> list[int]:
        """Draft the most likely tokens behind `tokens`, in one graph; at most `n_drafts`.

        For drafts that need no more than the most likely token of each step: it leaves no logits.
        """
        n, end = len(tokens), position + len(tokens)
        count = ffi.new("int32_t *", n_drafts)
        drafts = ffi.new("int32_t[]", n_drafts)
        _check(
            lib.pymtp_session_draft_greedy(
                self._handle, head, n, tokens, list(range(position, end)), [0] * n, count, drafts
            )
        )
        return list(drafts[0 : count[0]])

    def bar(self, tokens: Sequence[int]) -> None:
        """`draft_greedy` never proposes these tokens; replaces those of the call before."""
        _check(lib.pymtp_session_bar(self._handle, len(tokens), list(tokens)))

    @property
    def logits(self) -> Logits:
        """Logits of the last `decode`: (rows that asked for them, n_vocab). Valid until the next pass."""
        return self._rows(lib.pymtp_session_logits)

    @property
    def draft_logits(self) -> Logits:
        """Logits of the last `draft`: (1, n_vocab). Valid until the next pass."""
        return self._rows(lib.pymtp_session_draft_logits)

    def truncate(self, position: int, *, sequence: int = 0) -> None:
        """Drop the positions from `position` on, from the trunk's and the heads' cache alike."""
        _check(lib.pymtp_session_truncate(self._handle, sequence, position))

    @property
    def counters(self) -> Counters:
        """Passes, graph builds and times so far."""
        native = ffi.new("struct pymtp_counters *")
        lib.pymtp_session_counters(self._handle, native)
        return Counters(**{name: getattr(native, name) for name in Counters.__dataclass_fields__})

    def close(self) -> None:
        """Free the context. The session cannot be used afterwards; closing twice is harmless."""
        self._free()

    @property
    def _handle(self) -> Any:
        if not self._free.alive:
            raise ValueError("the session is closed")
        return self._native_handle

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _rows(self, function: object) -> Logits:
        shape = ffi.new("int32_t[2]")
        data = function(self._handle, shape, shape + 1)  # type: ignore[operator]
        n_bytes = 4 * shape[0] * shape[1]
        buffer = ffi.buffer(data, n_bytes) if n_bytes else b""
        return np.frombuffer(buffer, dtype=np.float32).reshape(shape[0], shape[1])


def _native_params(params: ContextParams, n_draft_max: int, n_seq_max: int) -> ctypes.Structure:
    native = llama_cpp.llama_context_default_params()
    native.n_ctx = params.n_ctx * n_seq_max
    # A verify pass is one ubatch; llama.cpp wants one row more where it keeps recurrent states, and the last of
    # several heads sees accepted drafts, the new token and the drafts so far in one pass.
    native.n_ubatch = max(params.n_ubatch, 2 * n_draft_max + 2 if n_draft_max else 1)
    native.n_batch = max(params.n_batch, native.n_ubatch)
    native.n_seq_max = n_seq_max
    native.n_threads = native.n_threads_batch = params.n_threads or _n_cores()
    # keep the window and no more, as llama.cpp's own programs do
    native.swa_full = False
    native.flash_attn_type = _FLASH_ATTN[params.flash_attn]
    native.type_k = KV_TYPES[params.type_k]
    native.type_v = KV_TYPES[params.type_v]
    native.no_perf = False
    return native  # type: ignore[no-any-return]


def _n_cores() -> int:
    n_physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    n_allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else n_physical
    return min(n_physical, n_allowed)


def _check(status: int) -> None:
    if status != lib.PYMTP_OK:
        raise _ERRORS[status](ffi.string(lib.pymtp_error_message()).decode())


def n_contexts() -> int:
    """llama_contexts that sessions of this process hold at present."""
    return int(lib.pymtp_n_contexts())
