"""One context of the engine: passes of the trunk and of the MTP heads over rows of tokens.

Owns the native session; snapshots are a part in a module of its own. Knows token ids, positions and logits; never text,
sampling or drafting policy. Belongs to one thread at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from pymtp.binding.library import check, ffi, lib, model_pointer
from pymtp.engine.context import ContextParams, resolved, session_params
from pymtp.engine.snapshot import Snapshots
from pymtp.errors import Closed, InvalidParameter, require

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pymtp.binding.arrays import Logits

_MEMORY: dict[int, Literal["shared", "own", "none"]]
_MEMORY = {lib.PYMTP_MEMORY_SHARED: "shared", lib.PYMTP_MEMORY_OWN: "own", lib.PYMTP_MEMORY_NONE: "none"}
_HEAD_CONTEXT = {"target": lib.PYMTP_HEAD_CONTEXT_TARGET, "chained": lib.PYMTP_HEAD_CONTEXT_CHAINED}
_FEED_SHIFT, _LOGITS = lib.PYMTP_ROW_FEED_SHIFT, lib.PYMTP_ROW_LOGITS


class Chunk(NamedTuple):
    """Consecutive positions of one sequence, as a pass takes them."""

    tokens: Sequence[int]
    position: int
    """The position of the first token."""
    sequence: int = 0
    logits: Literal["all", "last", "none"] = "last"
    """Which rows leave logits. Passes of the trunk only: a draft leaves one row for each chunk."""
    feed: bool = False
    """Whether the heads see the rows as well, in the same graph. Passes of the trunk only."""
    n_heads: int | None = None
    """How many of the heads do, from the first on; None: all."""


class LogitsRow(NamedTuple):
    """One row of logits that the last pass of a session has left; the session knows where it is stored."""

    session: Session
    of_draft: bool
    row: int

    @property
    def native_session(self) -> Any:
        """The native session. Raises Closed after the session was closed."""
        return self.session._native

    @property
    def logits(self) -> Logits:
        """All of it: (n_vocab,), or (n_draft_vocab,) of a limited draft. It is copied from a device.

        Raises Closed after the session was closed.
        """
        logits: Logits = self.session._fetch_logits(of_draft=self.of_draft, row=self.row)[0]
        return logits


Row: TypeAlias = "LogitsRow | Logits"
"""One row of logits: of a session's last pass, or an array (n_vocab,) float32."""


class Counters(NamedTuple):
    """What the engine has done since the session began. A pass is one graph run; times in microseconds."""

    n_trunk_passes: int
    n_head_passes: int
    n_trunk_builds: int
    n_head_builds: int
    n_output_bytes: int
    """Logits, candidates and drafts copied to the host."""
    t_trunk_us: int
    t_head_us: int
    t_sample_us: int
    """What samplers have spent on the session's rows."""

    @property
    def n_builds(self) -> int:
        """Graphs built, for the trunk and for the heads."""
        return self.n_trunk_builds + self.n_head_builds


class Session(Snapshots, AbstractContextManager["Session"]):
    """A context in which the trunk runs and, with `n_draft_max` > 0, the model's MTP heads.

    `model` is llama.cpp's handle of a model (Weights.model), loaded with `load_mtp` if its heads are to draft;
    without `uses_heads` the drafts that a round verifies come from somewhere else. `assistant` is the
    handle of a second model that drafts instead of heads; it must outlive the session. There are
    `params.n_seq_max` sequences, 0 and up, of `params.n_ctx` positions each.
    `mtp_context` says what the rows of several heads read: all of them the trunk's hidden states
    ("target"), or each those of the head before it ("chained"). `model_id` names the weights: a
    saved state belongs to them. `padding` says whether prompts, and rounds of many sequences, are
    padded with empty rows, so that few graphs serve all of them ("auto": where that pays).

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
        mtp_context: Literal["target", "chained"] = "target",
        model_id: str = "",
        padding: Literal["auto", "never", "always"] = "auto",
    ) -> None:
        require(mtp_context in _HEAD_CONTEXT, "mtp_context", "target or chained", mtp_context)
        params = resolved(model, params)
        self.n_ctx: int = params.n_ctx or 0
        """Positions that a sequence can hold."""
        model = model_pointer(model)
        native, _alive = session_params(params, n_draft_max)
        native.uses_heads, native.assistant = uses_heads, model_pointer(assistant)
        native.head_context = _HEAD_CONTEXT[mtp_context]
        native.padding = getattr(lib, f"PYMTP_PADDING_{padding.upper()}")
        handle = ffi.new("struct pymtp_session **")
        check(lib.pymtp_session_init(model, native, handle))
        self._pointer: Any = handle[0]
        self._free = weakref.finalize(self, lib.pymtp_free, handle[0])
        info = self._describe()
        self._counters = ffi.new("struct pymtp_counters *")
        self.n_reduced = 0
        """Highest logits that passes find: see reduce_logits."""
        heads_id = "" if info.n_heads == 1 else f" {info.n_heads} heads"
        self.model_id = self._state_id = model_id + params.cache_id + heads_id
        """Names the weights, how positions are computed and kept, and how many heads have a part in it."""
        self.n_seq_max = params.n_seq_max
        """Sequences that the session holds."""
        self.n_cells: int = params.n_cells or self.n_ctx * self.n_seq_max
        """Positions that all of them together can hold; the cache may have a few more."""
        self.n_ubatch: int = lib.llama_n_ubatch(info.context)
        """Rows that are computed at once: at least those of a round of all sequences. `decode` takes more."""
        self.is_async: bool = bool(info.is_async)
        """Whether a device computes the passes: `decode` returns before it is done, and logits wait for it."""
        is_recurrent = lib.llama_model_is_hybrid(model) or lib.llama_model_is_recurrent(model)
        self.needs_equal_rows: bool = self.n_seq_max > 1 and bool(is_recurrent or params.has_streams)
        """Whether sequences share a pass only if they have equally many rows in it."""
        self.n_draft_max = n_draft_max
        """Drafts that a round can verify; 0: it decodes plainly."""
        self.n_heads: int = info.n_heads
        """Heads that draft, at most one per draft step."""
        self.mtp_memory = _MEMORY[info.memory]
        """Where the MTP layers keep their K/V: in the trunk's cache ("shared"), in their "own" if the trunk's keeps
        more than K/V by position, or nowhere."""
        self.n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        """Tokens of the vocabulary."""
        self.n_draftable: int = info.n_draftable
        """Those before its padding, which is not drafted."""
        self._n_embd = lib.llama_model_n_embd_out(model)
        self.n_draft_vocab: int = self.n_vocab
        """Tokens that drafts are taken from."""
        self._draft_tokens: npt.NDArray[np.int64] | None = None  # None: the first n_draft_vocab

    @property
    def _native(self) -> Any:
        """The native session. Raises Closed after `close`."""
        if self._pointer is None:
            raise Closed("the session is closed")
        return self._pointer

    def decode(self, chunks: Sequence[Chunk], meanwhile: Callable[[], object] = lambda: None) -> None:
        """Run the trunk over all rows of `chunks`, in one pass as far as an ubatch reaches.

        `meanwhile` is called once the pass is under way on a device; on a CPU, just before the pass.
        """
        flags = _flags_of(chunks, self.n_heads)
        if not self.is_async:
            meanwhile()
        check(lib.pymtp_session_decode(self._native, *_rows_of(chunks), flags))
        if self.is_async:
            meanwhile()

    def decode_image(self, media: Any, chunk: int, position: int, *, sequence: int = 0, n_heads: int = 0) -> None:
        """Run the trunk over an image of a prompt with images (its native handle, and the image's number there).

        The first `n_heads` heads see it, too. A sequence goes back to where the image begins or ends, not into it.
        """
        check(lib.pymtp_session_decode_image(self._native, media, chunk, sequence, position, n_heads))

    def draft(self, step: int, n_steps: int, chunks: Sequence[Chunk]) -> None:
        """Run step `step` of a draft of `n_steps`: the last row of each chunk predicts the token that follows.

        Step 0 takes the newest token of each sequence, which the trunk has not decoded yet, and before it the
        positions that the heads have not seen, if any; they never see what comes before. A later step takes one
        row, the draft of the step before.
        """
        check(lib.pymtp_session_draft(self._native, step, n_steps, *_rows_of(chunks)))

    def draft_tokens(
        self, chunks: Sequence[Chunk], n_steps: int, *, probs: bool = False
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Draft the most likely tokens after `chunks` (as for step 0 of `draft`), all steps in one graph.

        Returns the drafts after each chunk, `n_steps` or fewer, as far as the context has room, and with `probs` the
        probability of each. Leaves no logits.
        """
        if len({chunk.sequence for chunk in chunks}) < len(chunks):
            raise InvalidParameter("chunks", "of different sequences")
        n = ffi.new("int32_t *", n_steps)
        size = len(chunks) * max(0, min(n_steps, self.n_draft_max))  # other numbers of steps are refused below
        tokens = ffi.new("int32_t[]", size)
        likelihood = ffi.new("float[]", size) if probs else ffi.NULL
        check(lib.pymtp_session_draft_greedy(self._native, *_rows_of(chunks), n, tokens, likelihood))
        rows = [slice(i * n_steps, i * n_steps + n[0]) for i in range(len(chunks))]
        drafts, likely = ffi.unpack(tokens, size), ffi.unpack(likelihood, size) if probs else []
        return [drafts[row] for row in rows], [likely[row] for row in rows]

    def pass_shape(self, steps: int, rows: int, n_sequences: int) -> tuple[int, int, int]:
        """What is computed for a round with these numbers of draft steps, rows and sequences, padding included."""
        computed, session = lib.pymtp_session_n_computed, self._native
        return steps, computed(session, rows, 0), computed(session, n_sequences, 1)

    def hidden_states(self, position: int, n: int, *, sequence: int = 0) -> Logits:
        """The trunk's hidden states that heads read, of `n` positions of the last pass: (n, n_embd) float32.

        Only of a session that drafts with heads, and of a pass of at most `n_ubatch` rows. Raises InvalidParameter.
        """
        import numpy as np

        hidden = np.empty((n, self._n_embd), np.float32)
        out = ffi.from_buffer("float[]", hidden)
        check(lib.pymtp_session_hidden(self._native, sequence, position, n, out))
        return hidden

    def rotated(self, position: int, rows: Logits) -> Logits:
        """`rows` of a query or key, (n, n_head_k) float32, as a trained head rotates them at a position."""
        found: Logits = rows.copy()
        out = ffi.from_buffer("float[]", found)
        check(lib.pymtp_session_rotate(self._native, position, *found.shape, out))
        return found

    def seen_end(self, sequence: int, n_heads: int) -> int:
        """The position of `sequence` after the last that the first `n_heads` heads have seen, or can see no more."""
        return self.seen_ends([sequence], n_heads)[0]

    def seen_ends(self, sequences: Sequence[int], n_heads: int) -> list[int]:
        """What `seen_end` returns for each of several sequences."""
        ends = ffi.new("int32_t[]", len(sequences))
        check(lib.pymtp_session_seen_end(self._native, n_heads, len(sequences), sequences, ends))
        return list(ends)

    def reduce_logits(self, n_max: int, *, also_on_host: bool = False) -> None:
        """Have later passes find the `n_max` highest logits of a row on the device that computes them. 0: off.

        Samplers that need no more than these fetch no others.

        Does nothing without a device, where there is nothing to gain, unless `also_on_host` is set (for tests).
        """
        check(lib.pymtp_session_reduce(self._native, n_max if self.is_async or also_on_host else 0))
        self.n_reduced = n_max

    def limit_drafts(self, n: int | None) -> None:
        """Draft only the first `n` tokens of the vocabulary (rounded up to 32); None: all of it.

        The heads then multiply that much less. What is emitted is not limited.
        """
        n_first = self.n_vocab if n is None else n
        check(lib.pymtp_session_limit_drafts(self._native, n_first, ffi.NULL, -1, ffi.NULL, ffi.NULL))
        self._draft_tokens, self.n_draft_vocab = None, n_first

    def limit_drafts_to(
        self, tokens: Sequence[int], matrices: Sequence[npt.NDArray[np.uint8]], type_id: int | None = None
    ) -> None:
        """Draft only `tokens`.

        `matrices`: for each head the rows of its output matrix, (len(tokens), bytes of a row), see
        gguf.weights.output_matrix. They are of the matrix's own type, or of another ggml_type.
        """
        import numpy as np

        rows, listed = self._matrix_rows(tokens, matrices), list(tokens)
        type_id = -1 if type_id is None else type_id
        check(lib.pymtp_session_limit_drafts(self._native, len(listed), listed, type_id, *rows))
        self._draft_tokens, self.n_draft_vocab = np.asarray(listed), len(listed)

    def replace_drafts(
        self, rows: Sequence[int], tokens: Sequence[int], matrices: Sequence[npt.NDArray[np.uint8]]
    ) -> None:
        """Draft `tokens` in the place of those at `rows` of the list of `limit_drafts_to`.

        `matrices`: for each head their rows of its output matrix, (len(tokens), bytes of a row), in its own type.
        """
        require(len(rows) == len(tokens), "rows", f"as many as the tokens: {len(tokens)}", rows)
        of_heads = self._matrix_rows(tokens, matrices)
        check(lib.pymtp_session_replace_drafts(self._native, len(rows), rows, tokens, *of_heads))
        assert self._draft_tokens is not None
        self._draft_tokens[rows] = tokens

    def _matrix_rows(
        self, tokens: Sequence[int], matrices: Sequence[npt.NDArray[np.uint8]]
    ) -> tuple[list[Any], list[int]]:
        """The rows of each head's output matrix, and their bytes, for the engine. Raises InvalidParameter."""
        import numpy as np

        are_rows = all(each.dtype == np.uint8 and each.ndim == 2 and len(each) == len(tokens) for each in matrices)
        allowed = f"uint8 of {len(tokens)} rows for each of {self.n_heads} heads"
        require(are_rows and len(matrices) == self.n_heads, "matrices", allowed, [each.shape for each in matrices])
        rows = [ffi.from_buffer(np.ascontiguousarray(each)) for each in matrices]  # which keeps it
        return rows, [each.shape[1] for each in matrices]

    def ban_tokens(self, tokens: Sequence[int]) -> None:
        """`draft_tokens` never proposes these tokens; replaces those of the call before."""
        check(lib.pymtp_session_ban_tokens(self._native, len(tokens), list(tokens)))

    @property
    def logits(self) -> Logits:
        """Logits of the last `decode`: (rows that asked for them, n_vocab), a copy."""
        return self._fetch_logits(of_draft=False)

    @property
    def draft_logits(self) -> Logits:
        """Logits of the last `draft`: (chunks, n_vocab), -inf for tokens that cannot be drafted. A copy."""
        logits = self._fetch_logits(of_draft=True)
        if logits.shape[1] == self.n_vocab:
            return logits
        import numpy as np

        everything = np.full((len(logits), self.n_vocab), -np.inf, np.float32)
        everything[:, self._draft_tokens if self._draft_tokens is not None else slice(logits.shape[1])] = logits
        return everything

    def rows(self) -> list[LogitsRow]:
        """The rows of logits of the last `decode`, for samplers."""
        return self._rows(of_draft=False)

    def draft_rows(self) -> list[LogitsRow]:
        """The rows of logits of the last `draft`, for samplers."""
        return self._rows(of_draft=True)

    def _fetch_logits(self, *, of_draft: bool, row: int | None = None) -> Logits:
        """Logits of the last pass, or one row of them: (rows, n_vocab or n_draft_vocab) float32, a copy."""
        import numpy as np

        n_rows, n_columns = self._shape(of_draft=of_draft)
        first = 0 if row is None else row
        logits = np.empty((n_rows if row is None else 1, n_columns), np.float32)
        out = ffi.from_buffer("float[]", logits)
        check(lib.pymtp_session_logits(self._native, of_draft, first, len(logits), n_columns, out))
        return logits

    def _rows(self, *, of_draft: bool) -> list[LogitsRow]:
        return [LogitsRow(self, of_draft, row) for row in range(self._shape(of_draft=of_draft)[0])]

    def _shape(self, *, of_draft: bool) -> tuple[int, int]:
        """Rows that the last pass has left, and logits of each."""
        n_columns = ffi.new("int32_t *")
        n_rows = lib.pymtp_session_n_logits(self._native, of_draft, n_columns)
        return max(n_rows, 0), n_columns[0]

    def adapt(self, adapters: Sequence[tuple[object, float]], adapters_id: str) -> None:
        """Apply these LoRA adapters from now on, each with its scale, to trunk and heads, instead of those before.

        `adapters`: llama.cpp's handles. `adapters_id` names them and their scales: a saved state belongs to them. What
        sequences hold stays as it was computed. Raises PymtpError for one that llama.cpp's graphs do not apply.
        """
        handles = ffi.new("struct llama_adapter_lora *[]", [handle for handle, _ in adapters])
        check(lib.pymtp_session_adapt(self._native, len(adapters), handles, [scale for _, scale in adapters]))
        self._state_id = self.model_id + adapters_id

    def truncate(self, position: int, *, sequence: int = 0) -> None:
        """Drop the positions from `position` on, from the trunk's and the heads' cache alike; 0 frees the sequence."""
        self.truncate_all({sequence: position})

    def truncate_all(self, positions: Mapping[int, int]) -> None:
        """Truncate several sequences, each at a position of its own: {sequence: position}."""
        sequences, begins = list(positions), list(positions.values())
        check(lib.pymtp_session_truncate(self._native, len(sequences), sequences, begins))

    def copy(self, source: int, target: int) -> None:
        """Make the sequence `target` what `source` is; both then continue, and draft, on their own."""
        check(lib.pymtp_session_copy(self._native, source, target))

    def discard(self, position: int, n: int, *, sequence: int = 0) -> None:
        """Drop `n` positions from `position` on; later ones take their place, as they were computed (a context shift).

        Raises PymtpError where the model's memory cannot move positions.
        """
        check(lib.pymtp_session_discard(self._native, sequence, position, n))

    @property
    def counters(self) -> Counters:
        """Passes, graph builds, copies and times so far."""
        check(lib.pymtp_session_counters(self._native, self._counters))
        return Counters(*(getattr(self._counters, name) for name in Counters._fields))

    @property
    def compute_bytes(self) -> int:
        """What the compute buffers of the session's graphs take at present, on all devices together."""
        return int(self._describe().n_compute_bytes)

    def _describe(self) -> Any:
        info = ffi.new("struct pymtp_session_info *")
        check(lib.pymtp_session_describe(self._native, info))
        return info

    def close(self) -> None:
        """Free the context. The session cannot be used afterwards; closing twice is harmless."""
        self._pointer = None
        self._free()

    def __exit__(self, *_: object) -> None:
        self.close()


def _rows_of(chunks: Sequence[Chunk]) -> tuple[int, list[int], list[int], list[int]]:
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


def _flags_of(chunks: Sequence[Chunk], n_heads: int) -> list[int]:
    """Flags of each row: whether it leaves logits, and how many of the `n_heads` heads see it."""
    flags: list[int] = []
    for chunk in chunks:
        n = len(chunk.tokens)
        n_logits = n if chunk.logits == "all" else 1 if chunk.logits == "last" else 0
        feed = (n_heads if chunk.n_heads is None else chunk.n_heads) << _FEED_SHIFT if chunk.feed else 0
        flags += [feed] * (n - n_logits) + [feed | _LOGITS] * n_logits
    return flags
