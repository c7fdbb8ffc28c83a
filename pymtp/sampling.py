"""From logits to tokens: the user's parameters and the chain of samplers that they stand for.

Owns the random generator of a sequence. Knows token ids, logits and probabilities; never text.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pymtp._library import llama_cpp
from pymtp.errors import InvalidParameter
from pymtp.session import Logits


@dataclass(frozen=True)
class SamplingParams:
    """What to sample with. Names, defaults and order are those of llama.cpp's samplers.

    Raises InvalidParameter for a value outside its range.
    """

    temperature: float = 0.8
    """0: always the most likely token."""
    top_k: int = 40
    """0: off."""
    top_p: float = 0.95
    """1: off."""
    min_p: float = 0.05
    """0: off."""
    seed: int | None = None
    """None: a new one for each generation."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or self.temperature == float("inf"):
            raise InvalidParameter("temperature", "0 or more", value=self.temperature)
        if not isinstance(self.top_k, int) or not 0 <= self.top_k < 2**31:
            raise InvalidParameter("top_k", "an integer, 0 (off) or more", value=self.top_k)
        for name in ("top_p", "min_p"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidParameter(name, "between 0 and 1", value=getattr(self, name))
        if self.seed is not None and not (isinstance(self.seed, int) and 0 <= self.seed < 2**32):
            raise InvalidParameter("seed", "an integer between 0 and 4294967295", value=self.seed)


class Sampler:
    """Samples the tokens of one sequence.

    `barred` tokens are never drafted or sampled. The same seed and the same logits give the same
    tokens: a draft does not touch the generator.
    """

    def __init__(self, params: SamplingParams, barred: Sequence[int] = ()) -> None:
        self.greedy_bar: tuple[int, ...] | None = tuple(barred)
        """A draft is the most likely token but for these; None if only `pick_draft` knows."""
        self._barred = np.array(barred, dtype=np.int64)
        self._chain = _Chain(params) if params.temperature > 0 else None

    def sample(self, logits: Logits) -> int:
        """Sample the next token. `logits`: (n_vocab,) of the target."""
        logits = self._without_barred(logits)
        return self._chain.sample(logits) if self._chain else int(logits.argmax())

    def pick_draft(self, logits: Logits) -> int:
        """The most likely token after the chain. `logits`: (n_vocab,) of an MTP head."""
        # none of the samplers changes which token is the most likely
        return int(self._without_barred(logits).argmax())

    def _without_barred(self, logits: Logits) -> Logits:
        if not len(self._barred):
            return logits
        logits = logits.copy()
        logits[self._barred] = -np.inf
        return logits


class _Chain:
    """llama.cpp's own samplers, applied to one row of logits."""

    _CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

    def __init__(self, params: SamplingParams) -> None:
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        seed = secrets.randbits(32) if params.seed is None else params.seed
        for sampler in (
            llama_cpp.llama_sampler_init_top_k(params.top_k),
            llama_cpp.llama_sampler_init_top_p(params.top_p, 0),
            llama_cpp.llama_sampler_init_min_p(params.min_p, 0),
            llama_cpp.llama_sampler_init_temp(params.temperature),
            llama_cpp.llama_sampler_init_dist(seed),
        ):
            llama_cpp.llama_sampler_chain_add(chain, sampler)
        self._chain = chain
        self._candidates = np.empty(0, dtype=self._CANDIDATE)

    def sample(self, logits: Logits) -> int:
        if len(self._candidates) != len(logits):
            self._candidates = np.empty(len(logits), dtype=self._CANDIDATE)
        self._candidates["id"] = np.arange(len(logits), dtype=np.int32)
        self._candidates["logit"] = logits
        array = llama_cpp.llama_token_data_array(
            data=self._candidates.ctypes.data_as(llama_cpp.llama_token_data_p),
            size=len(logits),
            selected=-1,
            sorted=False,
        )
        llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(array))
        token = int(self._candidates["id"][array.selected])
        llama_cpp.llama_sampler_accept(self._chain, token)
        return token

    def __del__(self) -> None:
        llama_cpp.llama_sampler_free(self._chain)
