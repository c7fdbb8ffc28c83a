"""MTP as llama.cpp does it: a second context for the heads, hidden rows through the host.

The reference for the engine, written on llama.cpp's public functions only: a target context of the default
type, a draft context of type MTP, and for each draft step one pass of one head.
"""

from __future__ import annotations

import ctypes

import numpy as np

from pymtp._library import llama_cpp
from pymtp.context import ContextParams, native_params
from pymtp.session import Logits

from llama_cpp import llama_cpp_ext as ext  # isort: skip


class TwoContexts:
    """One sequence. `n_heads` > 1: heads are chained, context rows get the target's hidden states."""

    def __init__(self, model: object, params: ContextParams, n_heads: int) -> None:
        self._n_heads = n_heads
        self._n_embd = llama_cpp.llama_model_n_embd_out(model)
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._target = self._context(model, params, 0)
        self._draft = self._context(model, params, 1)
        ext.llama_set_embeddings_nextn(self._target, True, False)
        ext.llama_set_embeddings_nextn(self._draft, True, True)
        # llama.cpp has laid out its buffers without these outputs, and keeps to that where the graph has the same nodes
        # with them (deepseek4): they would be overwritten. To take away a control vector makes it start afresh.
        for context in (self._target, self._draft):
            llama_cpp.llama_set_adapter_cvec(context, None, 0, 0, 0, 0)
        # hidden[i]: the target's hidden state behind position i - 1; zeros before position 0
        self._hidden = np.zeros((1, self._n_embd), np.float32)
        self.logits: Logits
        self.draft_logits: list[Logits]

    @staticmethod
    def _context(model: object, params: ContextParams, kind: int) -> object:
        native = native_params(params, 0, 1)
        native.ctx_type = kind
        native.n_rs_seq = 4  # recurrent states can go back over the longest draft of the tests
        native.n_outputs_max = 0
        return llama_cpp.llama_init_from_model(model, native)

    def decode(self, tokens: list[int], position: int) -> None:
        """Run the target, all rows with logits, then every head over the same rows."""
        self._pass(self._target, tokens, position, None, all_outputs=True)
        rows = llama_cpp.llama_get_logits(self._target)
        self.logits = np.ctypeslib.as_array(rows, (len(tokens), self._n_vocab)).copy()
        hidden = np.ctypeslib.as_array(ext.llama_get_embeddings_nextn(self._target), (len(tokens), self._n_embd)).copy()
        self._hidden = np.concatenate([self._hidden[: position + 1], hidden])
        for head in range(self._n_heads):
            self._catch_up(head, tokens, position)

    def draft(self, last: int, position: int, drafts: list[int]) -> None:
        """Draft behind `last` at `position`; the drafts are given, their logits are what is wanted."""
        self.draft_logits = []
        hidden = [self._hidden[position]]
        rows = [last]
        for step in range(len(drafts)):
            head = step % self._n_heads
            chained = self._n_heads > 1
            first = 0 if chained else step
            self._truncate(self._draft, position + first)
            ext.llama_set_nextn_layer_offset(self._draft, head)
            self._pass(self._draft, rows[first:], position + first, np.stack(hidden[first:]), all_outputs=False)
            # outputs are indexed by their row in the batch
            row = len(rows) - first - 1
            logits = llama_cpp.llama_get_logits_ith(self._draft, row)
            self.draft_logits.append(np.ctypeslib.as_array(logits, (self._n_vocab,)).copy())
            state = ext.llama_get_embeddings_nextn_ith(self._draft, row)
            hidden.append(np.ctypeslib.as_array(state, (self._n_embd,)).copy())
            rows.append(drafts[step])
        self._truncate(self._draft, position)

    def truncate(self, position: int) -> None:
        """Drop the positions from `position` on."""
        self._truncate(self._target, position)
        self._truncate(self._draft, position)
        self._hidden = self._hidden[: position + 1]

    def close(self) -> None:
        llama_cpp.llama_free(self._target)
        llama_cpp.llama_free(self._draft)

    def _catch_up(self, head: int, tokens: list[int], position: int) -> None:
        self._truncate(self._draft, position)
        ext.llama_set_nextn_layer_offset(self._draft, head)
        hidden = self._hidden[position : position + len(tokens)]
        self._pass(self._draft, tokens, position, hidden, all_outputs=False)

    @staticmethod
    def _truncate(context: object, position: int) -> None:
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(context), 0, position, -1)

    @staticmethod
    def _pass(context: object, tokens: list[int], position: int, hidden: Logits | None, *, all_outputs: bool) -> None:
        n = len(tokens)
        ids = (ctypes.POINTER(ctypes.c_int32) * n)(*[ctypes.pointer(ctypes.c_int32(0)) for _ in range(n)])
        batch = llama_cpp.llama_batch(
            n_tokens=n,
            token=(ctypes.c_int32 * n)(*tokens),
            embd=None
            if hidden is None
            else np.ascontiguousarray(hidden).ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=(ctypes.c_int32 * n)(*range(position, position + n)),
            n_seq_id=(ctypes.c_int32 * n)(*[1] * n),
            seq_id=ids,
            logits=(ctypes.c_int8 * n)(*[all_outputs or i == n - 1 for i in range(n)]),
        )
        assert llama_cpp.llama_decode(context, batch) == 0
