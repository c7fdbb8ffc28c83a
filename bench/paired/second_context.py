"""MTP as in llama.cpp's own programs: a second context for the heads, hidden states copied through the host.

Follows `draft_mtp` in llama.cpp's common/speculative.cpp and the calls around it in its server. Differs in two ways,
both of which make it faster: a draft is the row's highest logit (llama.cpp sorts the ten highest), and all buffers are
allocated before the first round, so that Python costs as little as for the other schemes.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from pymtp import ContextParams, set_log_level
from pymtp.binding.library import ffi
from pymtp.engine.context import native_params

from .schemes import Work

from llama_cpp import llama_cpp_ext as ext  # isort: skip  # the library must be loaded

Rows = npt.NDArray[np.float32]

_MTP = 1  # LLAMA_CONTEXT_TYPE_MTP


class TwoContexts:
    """A default context for the trunk and one of type MTP for the heads. Several heads are chained."""

    name = "two contexts"

    def __init__(self, model: object, params: ContextParams, n_draft_max: int) -> None:
        self._n_heads: int = llama_cpp.llama_model_n_layer_nextn(model)
        if 1 < self._n_heads < n_draft_max:
            raise ValueError(f"llama.cpp drafts at most one token for each of {self._n_heads} heads")
        self._n_ubatch = params.n_ubatch
        self._target = _Context(_open(model, params, n_draft_max, is_draft=False), model)
        self._draft = _Context(_open(model, params, n_draft_max, is_draft=True), model)
        ext.llama_set_embeddings_nextn(self._target.handle, True, False)
        ext.llama_set_embeddings_nextn(self._draft.handle, True, True)
        # the target's hidden state before the next position
        self._pending = np.zeros(self._target.n_embd, np.float32)
        self._verified: Rows

    def begin(self, prompt: Sequence[int]) -> int:
        """See Scheme."""
        self.truncate(0)
        self._pending[:] = 0
        for start in range(0, len(prompt), self._n_ubatch):
            part = prompt[start : start + self._n_ubatch]
            self._target.decode(part, start, None, "last")
            self._catch_up(part, start)
        return int(self._target.logits(len(part) - 1).argmax())

    def draft(self, newest: int, position: int, n: int) -> list[int]:
        """See Scheme."""
        tokens, hidden = [newest], [self._pending]
        for step in range(n):
            # a chained head computes its own K/V of the whole draft, replacing that of the head before
            first = 0 if self._n_heads > 1 else step
            if self._n_heads > 1:
                self._draft.truncate(position)
                ext.llama_set_nextn_layer_offset(self._draft.handle, step)
            self._draft.decode(tokens[first:], position + first, hidden[first:], "last")
            row = step - first
            tokens.append(int(self._draft.logits(row).argmax()))
            hidden.append(self._draft.hidden(row).copy())
        if self._n_heads > 1:
            ext.llama_set_nextn_layer_offset(self._draft.handle, 0)
        self._draft.truncate(position)
        return tokens[1:]

    def verify(self, tokens: Sequence[int], position: int) -> list[int]:
        """See Scheme."""
        self._target.decode(tokens, position, None, "all")
        picks = self._target.all_logits(len(tokens)).argmax(axis=1).tolist()
        self._catch_up(tokens, position)
        self._first = position
        return picks  # type: ignore[no-any-return]

    def truncate(self, position: int) -> None:
        """See Scheme."""
        self._target.truncate(position)
        self._draft.truncate(position)
        if position > 0:
            self._pending[:] = self._verified[position - self._first - 1]

    def work(self) -> Work:
        """See Scheme."""
        return Work(
            trunk_builds=self._target.n_builds,
            head_builds=self._draft.n_builds,
            head_passes=self._draft.n_passes,
            hidden_bytes=self._target.hidden_bytes + self._draft.hidden_bytes,
            output_bytes=self._target.output_bytes + self._draft.output_bytes,
        )

    def close(self) -> int:
        """See Scheme."""
        return self._draft.close() + self._target.close()

    def _catch_up(self, tokens: Sequence[int], position: int) -> None:
        """Run every head over the rows that the target has just decoded, and keep their hidden states."""
        states = self._target.all_hidden(len(tokens))
        rows = [self._pending, *states[:-1]]
        for head in range(self._n_heads):
            if self._n_heads > 1:
                self._draft.truncate(position)
                ext.llama_set_nextn_layer_offset(self._draft.handle, head)
            self._draft.decode(tokens, position, rows, "none")
        if self._n_heads > 1:
            ext.llama_set_nextn_layer_offset(self._draft.handle, 0)
        self._verified = states.copy()
        self._pending = self._verified[-1].copy()


class _Context:
    """A llama_context, its batches, and counts of the bytes copied for it."""

    def __init__(self, handle: object, model: object) -> None:
        self.handle = handle
        self.n_embd: int = llama_cpp.llama_model_n_embd_out(model)
        self._n_vocab: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._memory = llama_cpp.llama_get_memory(handle)
        self._batch = lru_cache(maxsize=None)(self._new_batch)
        self._view = lru_cache(maxsize=None)(_view)
        self._reads_hidden = False
        self.n_passes = self.hidden_bytes = self.output_bytes = 0

    @property
    def n_builds(self) -> int:
        return self.n_passes - int(llama_cpp.llama_perf_context(self.handle).n_reused)

    def decode(self, tokens: Sequence[int], position: int, hidden: Sequence[Rows] | Rows | None, outputs: str) -> None:
        """Decode `tokens`. `hidden`: hidden states for the heads' rows. `outputs`: which rows have logits."""
        n = len(tokens)
        batch = self._batch(n, outputs, hidden is not None)
        batch.token[:] = tokens
        batch.pos[:] = range(position, position + n)
        if hidden is not None:
            for i, row in enumerate(hidden):
                batch.embd[i] = row
        status = llama_cpp.llama_decode(self.handle, batch.native)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        self.n_passes += 1
        self.output_bytes += 4 * self._n_vocab * batch.n_outputs
        # the target returns hidden states of all rows, the heads of those with output
        n_states = n if hidden is None else n + batch.n_outputs
        self.hidden_bytes += 4 * self.n_embd * n_states

    def logits(self, row: int) -> Rows:
        """Logits of one row of the last pass."""
        return self._as_array(llama_cpp.llama_get_logits_ith(self.handle, row), self._n_vocab)

    def all_logits(self, n: int) -> Rows:
        """Logits of the `n` rows of the last pass, all of which have output."""
        return self._as_array(llama_cpp.llama_get_logits(self.handle), n, self._n_vocab)

    def hidden(self, row: int) -> Rows:
        """The hidden state that a head leaves for the next draft step."""
        return self._as_array(ext.llama_get_embeddings_nextn_ith(self.handle, row), self.n_embd)

    def all_hidden(self, n: int) -> Rows:
        """Hidden states of the `n` rows of the trunk's last pass."""
        return self._as_array(ext.llama_get_embeddings_nextn(self.handle), n, self.n_embd)

    def truncate(self, position: int) -> None:
        llama_cpp.llama_memory_seq_rm(self._memory, 0, position, -1)

    def close(self) -> int:
        """Free the context, and return the size of its compute buffers, which llama.cpp logs then."""
        with captured_log() as lines:
            llama_cpp.llama_free(self.handle)
        return sum(
            int(float(mib) * 2**20) for mib in re.findall(r"compute buffer size \w+ +([\d.]+) MiB", "".join(lines))
        )

    def _as_array(self, pointer: Any, *shape: int) -> Rows:
        return self._view(ctypes.addressof(pointer.contents), shape)

    def _new_batch(self, n_rows: int, outputs: str, has_hidden: bool) -> _Batch:
        return _Batch(n_rows, self.n_embd if has_hidden else 0, outputs)


class _Batch:
    """A llama_batch of one sequence and its buffers."""

    def __init__(self, n_rows: int, n_embd: int, outputs: str) -> None:
        self.token = np.zeros(n_rows, np.int32)
        self.pos = np.zeros(n_rows, np.int32)
        self.embd = np.zeros((n_rows, n_embd), np.float32)
        self._n_seq_id = np.ones(n_rows, np.int32)
        self._seq = ctypes.c_int32(0)
        self._seq_id = (ctypes.POINTER(ctypes.c_int32) * n_rows)(*[ctypes.pointer(self._seq)] * n_rows)
        self._logits = np.full(n_rows, outputs == "all", np.int8)
        if outputs == "last":
            self._logits[-1] = 1
        self.n_outputs = int(self._logits.sum())
        self.native = llama_cpp.llama_batch(
            n_tokens=n_rows,
            token=_pointer(self.token, ctypes.c_int32),
            embd=_pointer(self.embd, ctypes.c_float) if n_embd else None,
            pos=_pointer(self.pos, ctypes.c_int32),
            n_seq_id=_pointer(self._n_seq_id, ctypes.c_int32),
            seq_id=self._seq_id,
            logits=_pointer(self._logits, ctypes.c_int8),
        )


@contextmanager
def captured_log() -> Iterator[list[str]]:
    """llama.cpp's log while the context is active, in pieces of lines."""
    lines: list[str] = []
    callback = llama_cpp.llama_log_callback(lambda level, text, data: lines.append(text.decode(errors="replace")))
    llama_cpp.llama_log_set(callback, None)
    try:
        yield lines
    finally:
        set_log_level("none")  # pymtp takes the log back


def _open(model: object, params: ContextParams, n_draft_max: int, *, is_draft: bool) -> object:
    native = llama_cpp.llama_context_params.from_buffer_copy(ffi.buffer(native_params(params, n_draft_max)))
    if is_draft:
        native.ctx_type = _MTP
        native.n_outputs_max = 1
    else:
        native.n_outputs_max = n_draft_max + 1
        native.n_rs_seq = n_draft_max
    handle = llama_cpp.llama_init_from_model(model, native)
    if not handle:
        raise MemoryError("llama.cpp could not create a context")
    return handle


def _view(address: int, shape: tuple[int, ...]) -> Rows:
    rows: Rows = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), shape)
    return rows


def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))
