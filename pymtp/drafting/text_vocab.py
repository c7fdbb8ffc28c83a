"""The part of a large vocabulary that drafts are taken from, where its matrix is a large part of what they read.

It is the first tokens, the most frequent ones of most vocabularies, and those that texts have had recently. Knows token
ids and sizes; what is emitted is not limited.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pymtp.engine.session import Session
from pymtp.errors import BackendError
from pymtp.gguf.facts import GgufInfo
from pymtp.gguf.weights import output_tensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

N_FIRST, N_RECENT = 32768, 8192
"""Of vocabularies of 150 and 200 thousand tokens the former are .87 to .95 of English text and code, both .95 to .99
(bench/draft_vocab.py)."""
N_DRAFTS = 3
"""Of a round, for the estimate of what they read."""
SAVED = 0.15
"""Drafts read less by this part of what a token reads of the target, at least: rounds of a model with .16 take .92 of
the time, and what is drafted no more is mostly wrong (bench/draft_vocab.py)."""


def pays(info: GgufInfo) -> bool:
    """Whether heads of this model draft from a part of its vocabulary by themselves."""
    if info.has_assistant or info.n_draft_vocab is not None or info.n_vocab < 2 * (N_FIRST + N_RECENT):
        return False
    count, output = info.model_file.count, output_tensor(info, 0)
    used = count("expert_used_count") / max(count("expert_count"), 1)
    heads = (info.draft_file or info.model_file).head_prefixes
    read = sum(
        tensor.size_bytes * (used if "_exps." in name else 1)
        for name, tensor in info.tensors.items()
        if not name.startswith(("token_embd.", *heads))
    )
    read += output.size_bytes if info.ties_embedding else 0
    return N_DRAFTS * output.size_bytes * (1 - (N_FIRST + N_RECENT) / info.n_vocab) >= SAVED * read


def kept_bytes(info: GgufInfo) -> int:
    """What the matrices of that part take, where heads draft from one."""
    matrices = {output_tensor(info, head) for head in range(info.n_heads)}
    return sum(matrix.size_bytes for matrix in matrices) * (N_FIRST + N_RECENT) // info.n_vocab


class TextVocab:
    """Limits the drafts of a session to such a part. `matrices`: the output matrix of each head."""

    def __init__(self, session: Session, matrices: "Sequence[npt.NDArray[np.uint8]]") -> None:
        self._session, self._matrices = session, matrices
        self._row_of = {token: token for token in range(N_FIRST, N_FIRST + N_RECENT)}  # the longest unused first
        self.set_limited(True)

    @property
    def is_limited(self) -> bool:
        """Whether drafts are limited to it now: who has the session may have changed that."""
        return self._session.n_draft_vocab == N_FIRST + N_RECENT

    def note(self, tokens: Iterable[int]) -> None:
        """Draft these as well, in the place of those that texts have not had for longest."""
        new: dict[int, int] = {}  # by row, of which one can come twice
        for token in dict.fromkeys(token for token in tokens if N_FIRST <= token < self._session.n_draftable):
            row = self._row_of.pop(token, None)
            if row is None:
                row = self._row_of.pop(next(iter(self._row_of)))
                new[row] = token
            self._row_of[token] = row
        if new and self.is_limited:
            ids = list(new.values())
            self._session.replace_drafts(list(new), ids, [matrix[ids] for matrix in self._matrices])

    def set_limited(self, limited: bool) -> None:
        """Whether drafts are limited: what came before must not change a text that a seed stands for."""
        if limited and not self.is_limited:
            by_row = sorted((row, token) for token, row in self._row_of.items())
            tokens = [*range(N_FIRST), *(token for _, token in by_row)]
            with suppress(BackendError):  # no memory: drafts come from all
                self._session.limit_drafts_to(tokens, [matrix[tokens] for matrix in self._matrices])
        elif self.is_limited and not limited:
            self._session.limit_drafts(None)
