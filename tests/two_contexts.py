"""MTP as llama.cpp does it: a second context for the heads, hidden rows through the host.

The reference for the engine, written on llama.cpp's public functions only: a target context of the default
type, a draft context of type MTP, and for each draft step one pass of one head.
"""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np

from pymtp.binding.arrays import Logits
from pymtp.binding.library import ffi
from pymtp.engine.context import ContextParams, native_params

from llama_cpp import llama_cpp_ext as ext  # isort: skip


class TwoContexts:
    """One sequence. Several heads take turns, each drafting with the K/V of its own layer.

    What they read is llama.cpp's choice: positions of the text the target's hidden states, drafts those of the head
    that drafted before. `chained`: a head always reads what the head before it says. `assistant`: another model, which
    drafts from the target's K/V and at one position.
    """

    def __init__(
        self,
        model: object,
        params: ContextParams,
        n_heads: int,
        *,
        chained: bool = False,
        assistant: object | None = None,
    ) -> None:
        self._n_heads = n_heads
        self._chained = chained
        self._has_assistant = assistant is not None
        self._n_ubatch = params.n_ubatch
        self._n_embd = llama_cpp.llama_model_n_embd_out(model)
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._target = self._context(model, params, 0)
        self._draft = self._context(assistant or model, params, 1, self._target if assistant else None)
        ext.llama_set_embeddings_nextn(self._target, True, False)
        ext.llama_set_embeddings_nextn(self._draft, True, True)
        # llama.cpp has laid out its buffers without these outputs, and keeps to that where the graph has the same nodes
        # with them (deepseek4): they would be overwritten. To take away a control vector makes it start afresh.
        for context in (self._target, self._draft):
            llama_cpp.llama_set_adapter_cvec(context, None, 0, 0, 0, 0)
        # hidden[i]: the target's hidden state after position i - 1; zeros before position 0.
        # After it those of each head, where they are chained.
        n_hidden = n_heads if chained else 1
        self._hidden = [np.zeros((1, self._n_embd), np.float32) for _ in range(n_hidden)]
        self._tokens: list[int] = []
        self.logits: Logits
        self.draft_logits: list[Logits]

    @staticmethod
    def _context(model: object, params: ContextParams, kind: int, other: object | None = None) -> object:
        native = llama_cpp.llama_context_params.from_buffer_copy(ffi.buffer(native_params(params, 0)))
        native.ctx_other = other
        native.ctx_type = kind
        native.n_rs_seq = 8  # recurrent states can go back over the longest draft of the tests
        native.n_outputs_max = 0
        return llama_cpp.llama_init_from_model(model, native)

    def decode(self, tokens: list[int], position: int) -> None:
        """Run the target, all rows with logits, then every head over the same rows."""
        self._pass(self._target, tokens, position, None)
        rows = llama_cpp.llama_get_logits(self._target)
        self.logits = np.ctypeslib.as_array(rows, (len(tokens), self._n_vocab)).copy()
        self._tokens = self._tokens[:position] + tokens
        self._keep(0, position, ext.llama_get_embeddings_nextn(self._target))
        for head in range(0 if self._has_assistant else self._n_heads):
            read = self._hidden[head if self._chained else 0][position : position + len(tokens)]
            self._run_head(head, tokens, position, read)
            if head + 1 < len(self._hidden):
                self._keep(head + 1, position, ext.llama_get_embeddings_nextn(self._draft))

    def draft(self, last: int, position: int, drafts: list[int]) -> None:
        """Draft after `last` at `position`; the drafts are given, their logits are what is wanted."""
        self.draft_logits = []
        hidden = self._hidden[0][position : position + 1]
        if self._has_assistant:
            for row in [last, *drafts[:-1]]:
                hidden = self._run_head(0, [row], position, hidden)
                logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._draft), (1, self._n_vocab))
                self.draft_logits.append(logits[0].copy())
            return
        rows = [last, *drafts]
        for step in range(len(drafts)):
            # one head continues where it is; several have not seen the drafts before theirs
            first = step if self._n_heads == 1 else 0
            n = step + 1 - first
            said = self._run_head(step % self._n_heads, rows[first : step + 1], position + first, hidden[first:])
            self.draft_logits.append(
                np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._draft), (n, self._n_vocab))[-1].copy()
            )
            if self._chained:
                if step + 1 < self._n_heads:
                    hidden = np.concatenate([self._hidden[step + 1][position : position + 1], said])
            else:
                hidden = np.concatenate([hidden, said[-1:]])
        self._truncate(self._draft, position)

    def truncate(self, position: int) -> None:
        """Drop the positions from `position` on."""
        self._tokens = self._tokens[:position]
        self._hidden = [hidden[: position + 1] for hidden in self._hidden]
        self._truncate(self._draft, position)
        if self._truncate(self._target, position):
            return
        # a memory that cannot go back begins again
        self._truncate(self._target, 0)
        for start in range(0, position, self._n_ubatch):
            self._pass(self._target, self._tokens[start : start + self._n_ubatch], start, None)

    def forget(self, position: int, n: int) -> None:
        """Drop `n` positions; the others stay where they are."""
        for context in (self._target, self._draft):
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(context), 0, position, position + n)

    def discard(self, position: int, n: int) -> None:
        """Drop `n` positions; those after them move up."""
        self.forget(position, n)
        for context in (self._target, self._draft):
            llama_cpp.llama_memory_seq_add(llama_cpp.llama_get_memory(context), 0, position + n, -1, -n)
        del self._tokens[position : position + n]
        self._hidden = [np.delete(hidden, slice(position + 1, position + n + 1), axis=0) for hidden in self._hidden]

    def close(self) -> None:
        llama_cpp.llama_free(self._target)
        llama_cpp.llama_free(self._draft)

    def _keep(self, source: int, position: int, rows: object) -> None:
        """Keep the hidden states of all positions from `position` on."""
        n = len(self._tokens) - position
        states = np.ctypeslib.as_array(rows, (n, self._n_embd)).copy()
        self._hidden[source] = np.concatenate([self._hidden[source][: position + 1], states])

    def _run_head(self, head: int, tokens: list[int], position: int, hidden: Logits) -> Logits:
        """One head over rows that it sees for the first time; its hidden states."""
        self._truncate(self._draft, position)
        ext.llama_set_nextn_layer_offset(self._draft, head)
        self._pass(self._draft, tokens, position, hidden)
        states = ext.llama_get_embeddings_nextn(self._draft)
        return np.ctypeslib.as_array(states, (len(tokens), self._n_embd)).copy()

    @staticmethod
    def _truncate(context: object, position: int) -> bool:
        return bool(llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(context), 0, position, -1))

    @staticmethod
    def _pass(context: object, tokens: list[int], position: int, hidden: Logits | None) -> None:
        """All rows have outputs."""
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
            logits=(ctypes.c_int8 * n)(*[1] * n),
        )
        assert llama_cpp.llama_decode(context, batch) == 0
