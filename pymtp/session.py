"""One context of the engine: passes of the trunk and of the MTP heads over rows of tokens.

Owns the native handle. Knows token ids, positions and logits; never text, sampling or drafting policy.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from pymtp import state
from pymtp._library import abi_id, ffi, lib, llama_cpp
from pymtp.context import MAX_TOKENS, ContextParams, native_params
from pymtp.errors import BackendError, ContextFull, InvalidParameter, PymtpError, StateError

Logits = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]

MAX_SEQUENCES = 256
"""The most that llama.cpp takes."""

_ERRORS: dict[int, type[PymtpError]] = {
    lib.PYMTP_FULL: ContextFull,
    lib.PYMTP_INVALID: PymtpError,
    lib.PYMTP_FAILED: BackendError,
}

_MEMORY: dict[int, Literal["shared", "own", "none"]] = {
    lib.PYMTP_MEMORY_SHARED: "shared",
    lib.PYMTP_MEMORY_OWN: "own",
    lib.PYMTP_MEMORY_NONE: "none",
}

_HEAD_CONTEXT = {"target": lib.PYMTP_HEAD_CONTEXT_TARGET, "chained": lib.PYMTP_HEAD_CONTEXT_CHAINED}


class Chunk(NamedTuple):
    """Consecutive positions of one sequence, as a pass takes them."""

    tokens: Sequence[int]
    position: int
    """Of the first token."""
    sequence: int = 0
    logits: Literal["all", "last", "none"] = "last"
    """Which rows leave logits. Passes of the trunk only: a draft leaves one row for each chunk."""
    feed: bool = False
    """Whether the heads see the rows as well, in the same graph. Passes of the trunk only."""
    n_heads: int | None = None
    """How many of the heads do, from the first on; None: all."""


class LogitsRow(NamedTuple):
    """One row of logits that the last pass of a session has left; where it lies is the session's business."""

    session: Any
    """The native handle."""
    of_draft: bool
    row: int

    @property
    def logits(self) -> Logits:
        """All of it, (n_vocab,), of a limited draft (n_draft_vocab,). What lies on a device is fetched."""
        source = lib.pymtp_session_draft_logits if self.of_draft else lib.pymtp_session_logits
        logits: Logits = _fetch(self.session, source)[self.row]
        return logits


@dataclass(frozen=True)
class Counters:
    """What the engine has done since the session began. A pass is one graph run; times in microseconds."""

    n_trunk_passes: int
    n_head_passes: int
    """Passes that draft."""
    n_head_runs: int
    """Heads run for a draft token, in all passes."""
    n_replays: int
    """Trunk passes that only decode accepted rows again, where a memory cannot drop drafts."""
    n_trunk_builds: int
    n_head_builds: int
    n_hidden_bytes: int
    """Hidden states copied between host and device."""
    n_output_bytes: int
    """Logits, candidates and drafts copied to the host."""
    t_trunk_us: int
    t_head_us: int
    t_sample_us: int
    """What samplers have spent on the session's rows."""


class Timing(NamedTuple):
    """Of the counters, what changes with every round: microseconds, and graphs built."""

    trunk_us: int
    head_us: int
    sample_us: int
    n_builds: int


class Session:
    """A context in which the trunk runs and, with `n_draft_max` > 0, the model's MTP heads.

    `model` is llama-cpp-python's handle of a model, loaded with `load_mtp` if its heads are to draft;
    without `uses_heads` the drafts that a round verifies come from somewhere else. `assistant` is the
    handle of a second model that drafts in the place of heads; it must outlive the session. There are
    `n_seq_max` sequences, 0 and up, of `params.n_ctx` positions each. `mtp_context` says what the
    rows of several heads read: all of them the trunk's hidden states ("target"), or each those of the
    head before it ("chained"). `model_id` names the weights: a saved state belongs to them.

    Every pass takes chunks of rows. Raises ContextFull when the cache has no room (the session is
    then as before), BackendError when the backend fails (the rows of the pass are gone), PymtpError
    for rows that do not fit (the session is as before).
    """

    def __init__(
        self,
        model: object,
        params: ContextParams,
        *,
        n_draft_max: int = 0,
        uses_heads: bool = True,
        assistant: object | None = None,
        n_seq_max: int = 1,
        mtp_context: Literal["target", "chained"] = "target",
        model_id: str = "",
    ) -> None:
        if not 1 <= n_seq_max <= MAX_SEQUENCES:
            raise InvalidParameter("n_seq_max", f"between 1 and {MAX_SEQUENCES}", value=n_seq_max)
        if mtp_context not in _HEAD_CONTEXT:
            raise InvalidParameter("mtp_context", "target or chained", value=mtp_context)
        # llama.cpp rounds its cache up: what was asked for is the limit
        self.n_ctx: int = params.n_ctx or llama_cpp.llama_model_n_ctx_train(model)
        """Positions that a sequence can hold."""
        if self.n_ctx * n_seq_max > MAX_TOKENS:
            raise InvalidParameter(
                "n_ctx", f"at most {MAX_TOKENS // n_seq_max} for {n_seq_max} sequences", value=self.n_ctx
            )
        params = replace(params, n_ctx=self.n_ctx)
        self._native_handle = _init(
            model,
            params,
            n_draft_max,
            n_seq_max,
            _HEAD_CONTEXT[mtp_context],
            uses_heads=uses_heads,
            assistant=assistant,
        )
        self._free = weakref.finalize(self, lib.pymtp_session_free, self._native_handle)
        context = int(ffi.cast("intptr_t", lib.pymtp_session_context(self._handle)))
        self._counters = ffi.new("struct pymtp_counters *")
        # the tokens that drafts are limited to, if not the first
        self._draft_vocab: npt.NDArray[np.int64] | None = None
        self._n_vocab: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.n_draft_vocab = self._n_vocab
        """Tokens that drafts are taken from."""
        self.n_reduced = 0
        """See reduce_logits."""
        self.model_id = model_id
        """Names the weights."""
        self.n_seq_max = n_seq_max
        """Sequences that the session holds."""
        self.n_ubatch: int = llama_cpp.llama_n_ubatch(context)
        """Rows that are computed at once: at least those of a round of all sequences. `decode` takes more."""
        self.computes_apart: bool = bool(lib.pymtp_session_computes_apart(self._handle))
        """Whether a device computes the passes: `decode` returns before it is done, and logits wait for it."""
        self.n_draft_max: int = lib.pymtp_session_n_draft_max(self._handle)
        """Drafts that a round can verify; 0: it decodes plainly."""
        self.n_heads: int = lib.pymtp_session_n_heads(self._handle)
        """Heads that draft: at most one for each token."""
        self.mtp_memory = _MEMORY[lib.pymtp_session_memory(self._handle)]
        """Where the MTP layers keep their K/V: in the trunk's cache ("shared"), in their "own", or nowhere."""
        self.memory_note: str = ffi.string(lib.pymtp_session_memory_note(self._handle)).decode()
        """Why the heads have a cache of their own, or why sequences are computed one by one; else ""."""

    def decode(self, chunks: Sequence[Chunk]) -> None:
        """Run the trunk over all rows of `chunks`, in one pass as far as an ubatch reaches."""
        flags = [flag for chunk in chunks for flag in _flags(chunk, self.n_heads)]
        check(lib.pymtp_session_decode(self._handle, *_rows(chunks), flags))

    def draft(self, step: int, n_steps: int, chunks: Sequence[Chunk]) -> None:
        """Run step `step` of a draft of `n_steps`: the last row of each chunk predicts the token that follows.

        Step 0 takes the newest token of each sequence, which the trunk has not decoded yet, and before it the
        positions that the heads have not seen, if any; what lies before these they never see. A later step takes one
        row, the draft of the step before.
        """
        check(lib.pymtp_session_draft(self._handle, step, n_steps, *_rows(chunks)))

    @overload
    def draft_greedy(self, chunks: Sequence[Chunk], n_steps: int) -> Tokens: ...

    @overload
    def draft_greedy(self, chunks: Sequence[Chunk], n_steps: int, *, probs: Literal[True]) -> tuple[Tokens, Logits]: ...

    def draft_greedy(
        self, chunks: Sequence[Chunk], n_steps: int, *, probs: bool = False
    ) -> Tokens | tuple[Tokens, Logits]:
        """Draft the most likely tokens behind `chunks` (as for step 0 of `draft`), all steps in one graph.

        Returns the drafts: (len(chunks), n) int32, n <= n_steps as far as the context has room. With `probs` also
        the probability of each, (len(chunks), n) float32. Leaves no logits.
        """
        if len({chunk.sequence for chunk in chunks}) < len(chunks):
            raise InvalidParameter("chunks", "of different sequences")
        n = ffi.new("int32_t *", n_steps)
        drafts = np.empty(len(chunks) * n_steps, np.int32)
        likelihood = np.empty(len(chunks) * n_steps if probs else 0, np.float32)
        out = (
            ffi.from_buffer("int32_t[]", drafts),
            ffi.from_buffer("float[]", likelihood) if probs else ffi.NULL,
        )
        check(lib.pymtp_session_draft_greedy(self._handle, *_rows(chunks), n, *out))
        shape = len(chunks), n[0]
        # the rows lie n apart, not n_steps
        tokens = drafts[: shape[0] * shape[1]].reshape(shape)
        return (tokens, likelihood[: tokens.size].reshape(shape)) if probs else tokens

    def seen_end(self, sequence: int, n_heads: int) -> int:
        """The position of `sequence` behind the last that all of the first `n_heads` heads have seen."""
        return int(lib.pymtp_session_seen_end(self._handle, sequence, n_heads))

    def reduce_logits(self, n_max: int, *, also_on_host: bool = False) -> None:
        """Have later passes prepare `candidates` of up to `n_max` on the device that computes the logits. 0: no more.

        Without a device there is nothing to gain, and nothing is done unless `also_on_host` says so (for tests).
        """
        check(lib.pymtp_session_reduce(self._handle, n_max, also_on_host))
        self.n_reduced = n_max

    def candidates(self, n: int) -> tuple[Tokens, Logits]:
        """The `n` highest logits of each row of the last `decode`, highest first: ids and values, (rows, n) each.

        Cheaper than `logits` where these lie on a device and `reduce_logits` has been asked for as many.
        """
        return self._candidates(n, of_draft=False)

    def draft_candidates(self, n: int) -> tuple[Tokens, Logits]:
        """The `n` highest logits of each row of the last `draft`. See `candidates`."""
        return self._candidates(n, of_draft=True)

    def limit_drafts(self, n: int | None) -> None:
        """Draft only the first `n` tokens of the vocabulary (rounded up to 32); None: all of it.

        The heads then multiply that much less. What is emitted is not limited.
        """
        check(lib.pymtp_session_trim(self._handle, self._n_vocab if n is None else n, ffi.NULL, ffi.NULL))
        self._draft_vocab = None
        self.n_draft_vocab = self._n_vocab if n is None else n

    def limit_drafts_to(self, tokens: Sequence[int], matrices: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Draft only `tokens`. `matrices`: for each head the rows of its output matrix, (len(tokens), bytes of a row).

        See gguf_file.output_rows.
        """
        rows = [np.ascontiguousarray(matrix) for matrix in matrices]
        expected = [(len(tokens), self._output_row_bytes(head)) for head in range(self.n_heads)]
        if [matrix.shape for matrix in rows] != expected or any(matrix.dtype != np.uint8 for matrix in rows):
            raise InvalidParameter("matrices", f"uint8 of shapes {expected}", value=[matrix.shape for matrix in rows])
        pointers = ffi.new("void *[]", [ffi.cast("void *", matrix.ctypes.data) for matrix in rows])
        check(lib.pymtp_session_trim(self._handle, len(tokens), list(tokens), pointers))
        self._draft_vocab = np.asarray(tokens)
        self.n_draft_vocab = len(tokens)

    def bar(self, tokens: Sequence[int]) -> None:
        """`draft_greedy` never proposes these tokens; replaces those of the call before."""
        check(lib.pymtp_session_bar(self._handle, len(tokens), list(tokens)))

    @property
    def logits(self) -> Logits:
        """Logits of the last `decode`: (rows that asked for them, n_vocab). Valid until the next call."""
        return _fetch(self._handle, lib.pymtp_session_logits)

    @property
    def draft_logits(self) -> Logits:
        """Logits of the last `draft`: (chunks, n_vocab), -inf for tokens that drafts cannot be.

        Valid until the next call.
        """
        logits = _fetch(self._handle, lib.pymtp_session_draft_logits)
        if logits.shape[1] == self._n_vocab:
            return logits
        everything = np.full((len(logits), self._n_vocab), -np.inf, np.float32)
        everything[:, self._draft_vocab if self._draft_vocab is not None else slice(logits.shape[1])] = logits
        return everything

    def rows(self) -> list[LogitsRow]:
        """The rows of logits of the last `decode`, for samplers."""
        return self._logits_rows(of_draft=False)

    def draft_rows(self) -> list[LogitsRow]:
        """The rows of logits of the last `draft`, for samplers."""
        return self._logits_rows(of_draft=True)

    def truncate(self, position: int, *, sequence: int = 0) -> None:
        """Drop the positions from `position` on, from the trunk's and the heads' cache alike; 0 frees the sequence."""
        check(lib.pymtp_session_truncate(self._handle, sequence, position))

    def copy(self, source: int, target: int) -> None:
        """Make the sequence `target` what `source` is; both then go on, and draft, on their own."""
        check(lib.pymtp_session_copy(self._handle, source, target))

    def discard(self, position: int, n: int, *, sequence: int = 0) -> None:
        """Drop `n` positions from `position` on; those behind move up, as they were computed (a context shift).

        Raises PymtpError where the model's memory cannot move positions.
        """
        check(lib.pymtp_session_discard(self._handle, sequence, position, n))

    def save(self) -> bytes:
        """All sequences as bytes, what the heads know of them included. See `restore`."""
        data, size = ffi.new("const uint8_t **"), ffi.new("size_t *")
        check(lib.pymtp_session_save(self._handle, data, size))
        return state.pack(bytes(ffi.buffer(data[0], size[0])), engine=abi_id(), model=self.model_id)

    def restore(self, data: bytes) -> None:
        """Go back to what `save` has returned, in this session or another of the same model and shape.

        Raises StateError for bytes that are damaged or of another model, version or shape; the session is then as
        before.
        """
        payload = state.unpack(data, engine=abi_id(), model=self.model_id)
        status = lib.pymtp_session_restore(self._handle, ffi.from_buffer("uint8_t[]", payload), len(payload))
        if status == lib.PYMTP_INVALID:
            raise StateError(ffi.string(lib.pymtp_error_message()).decode())
        check(status)

    def save_file(self, path: str | os.PathLike[str]) -> None:
        """`save` into a file. Raises StateError if it cannot be written; what was there before stays then."""
        state.write(path, self.save())

    def restore_file(self, path: str | os.PathLike[str]) -> None:
        """`restore` from a file."""
        self.restore(state.read(path))

    @property
    def counters(self) -> Counters:
        """Passes, graph builds, copies and times so far."""
        lib.pymtp_session_counters(self._handle, self._counters)
        return Counters(**{name: getattr(self._counters, name) for name in Counters.__dataclass_fields__})

    @property
    def timing(self) -> Timing:
        """The times so far: cheaper than `counters`."""
        native = self._counters
        lib.pymtp_session_counters(self._handle, native)
        return Timing(
            native.t_trunk_us, native.t_head_us, native.t_sample_us, native.n_trunk_builds + native.n_head_builds
        )

    @property
    def compute_bytes(self) -> int:
        """What the compute buffers of the session's graphs take at present, on all devices together."""
        return int(lib.pymtp_session_compute_bytes(self._handle))

    def close(self) -> None:
        """Free the context. The session cannot be used afterwards; closing twice is harmless."""
        self._free()
        self._native_handle = None

    @property
    def _handle(self) -> Any:
        handle = self._native_handle
        if handle is None:
            raise ValueError("the session is closed")
        return handle

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _candidates(self, n: int, *, of_draft: bool) -> tuple[Tokens, Logits]:
        shape = lib.pymtp_session_n_logits(self._handle, of_draft), n
        ids, values = np.empty(shape, np.int32), np.empty(shape, np.float32)
        out = ffi.from_buffer("int32_t[]", ids), ffi.from_buffer("float[]", values)
        check(lib.pymtp_session_candidates(self._handle, of_draft, n, *out))
        return ids, values

    def _output_row_bytes(self, head: int) -> int:
        kind, n_bytes = ffi.new("int32_t *"), ffi.new("int64_t *")
        check(lib.pymtp_session_output_type(self._handle, head, kind, n_bytes))
        return int(n_bytes[0])

    def _logits_rows(self, *, of_draft: bool) -> list[LogitsRow]:
        n_rows = lib.pymtp_session_n_logits(self._handle, of_draft)
        return [LogitsRow(self._native_handle, of_draft, row) for row in range(n_rows)]


def _fetch(handle: Any, function: Any) -> Logits:
    shape = ffi.new("int32_t[2]")
    data = function(handle, shape, shape + 1)
    n_bytes = 4 * shape[0] * shape[1]
    buffer = ffi.buffer(data, n_bytes) if n_bytes else b""
    logits: Logits = np.frombuffer(buffer, dtype=np.float32).reshape(shape[0], shape[1])
    return logits


def _init(
    model: object,
    context: ContextParams,
    n_draft_max: int,
    n_seq_max: int,
    mtp_context: int,
    *,
    uses_heads: bool,
    assistant: object | None,
) -> Any:
    native = native_params(context, n_draft_max, n_seq_max)
    params = ffi.new("struct pymtp_session_params *")
    params.context = ffi.cast("struct llama_context_params *", ctypes.addressof(native))
    params.n_draft_max = n_draft_max
    params.uses_heads = uses_heads
    params.head_context = mtp_context
    params.assistant = _native_model(assistant)
    handle = ffi.new("struct pymtp_session **")
    check(lib.pymtp_session_init(_native_model(model), params, handle))
    return handle[0]


def _native_model(model: object | None) -> Any:
    if model is None:
        return ffi.NULL
    return ffi.cast("struct llama_model *", ctypes.cast(model, ctypes.c_void_p).value)  # type: ignore[arg-type]


def _rows(chunks: Sequence[Chunk]) -> tuple[int, list[int], list[int], list[int]]:
    """The chunks as the engine takes them: number of rows, and token, position and sequence of each."""
    tokens: list[int] = []
    positions: list[int] = []
    sequences: list[int] = []
    for chunk in chunks:
        n = len(chunk.tokens)
        if n == 0:
            raise InvalidParameter("chunks", "at least one token long each")
        tokens += chunk.tokens
        positions += range(chunk.position, chunk.position + n)
        sequences += [chunk.sequence] * n
    return len(tokens), tokens, positions, sequences


def _flags(chunk: Chunk, n_heads: int) -> list[int]:
    n = len(chunk.tokens)
    n_silent = {"all": 0, "last": n - 1, "none": n}[chunk.logits]
    feed = (n_heads if chunk.n_heads is None else chunk.n_heads) << lib.PYMTP_ROW_FEED_SHIFT if chunk.feed else 0
    return [feed] * n_silent + [feed | lib.PYMTP_ROW_LOGITS] * (n - n_silent)


def check(status: int) -> None:
    if status != lib.PYMTP_OK:
        raise _ERRORS[status](ffi.string(lib.pymtp_error_message()).decode())


def draft_obstacle(model: object, assistant: object | None = None) -> str | None:
    """Why llama.cpp cannot run the MTP heads of a loaded model, or its assistant; None if it can."""
    obstacle = lib.pymtp_draft_obstacle(_native_model(model), _native_model(assistant))
    return ffi.string(obstacle).decode() if obstacle else None


def n_contexts() -> int:
    """llama_contexts that sessions of this process hold at present."""
    return int(lib.pymtp_n_contexts())
