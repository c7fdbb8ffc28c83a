"""llama.cpp's own samplers, applied to the whole vocabulary one after the other: what pymtp's chain has to equal.

Two differences are meant. Tokens that cannot be are dropped before locally typical sampling: llama.cpp takes the
logarithm of their probability, 0, and then sorts by NaN. And a window of -1 is the whole history; llama.cpp's programs
put the size of the context there.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import llama_cpp
import numpy as np

from pymtp.binding.library import ffi
from pymtp.sampling.params import SamplingParams

N_HISTORY_MAX = 4096

_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class LlamaChain:
    """What llama.cpp's common_sampler_init makes of the parameters. `vocab`: for DRY's breakers and infill."""

    def __init__(self, params: SamplingParams, n_vocab: int, vocab: Any = None) -> None:
        address = int(ffi.cast("intptr_t", vocab)) if vocab else None
        self._samplers = list(_samplers(params, n_vocab, address))
        weakref.finalize(self, _free, [sampler for _, sampler in self._samplers])

    def accept(self, *tokens: int) -> None:
        for token in tokens:
            for _, sampler in self._samplers:
                llama_cpp.llama_sampler_accept(sampler, token)

    def apply(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that are left, in their order, and their probabilities."""
        left, _ = self._run(logits)
        return left["id"], left["p"]

    def sample(self, logits: np.ndarray) -> int:
        left, selected = self._run(logits)
        token = int(left["id"][selected])
        self.accept(token)
        return token

    def _run(self, logits: np.ndarray) -> tuple[np.ndarray, int]:
        left = np.zeros(len(logits), _TOKEN_DATA)
        left["id"], left["logit"] = np.arange(len(logits)), logits
        selected, is_sorted = -1, False
        for name, sampler in self._samplers:
            if name in ("typical", "pick"):
                left = left[np.isfinite(left["logit"])]
            array = llama_cpp.llama_token_data_array()
            array.data = ctypes.cast(left.ctypes.data, ctypes.POINTER(llama_cpp.llama_token_data))
            array.size, array.selected, array.sorted = len(left), -1, is_sorted
            llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
            begin = (ctypes.addressof(array.data.contents) - left.ctypes.data) // _TOKEN_DATA.itemsize
            left = left[begin : begin + array.size].copy()
            selected, is_sorted = array.selected, array.sorted
        return left, selected


def _samplers(params: SamplingParams, n_vocab: int, vocab: Any) -> Any:
    seed = params.seed or 0
    if params.logit_bias:
        biases = (llama_cpp.llama_logit_bias * len(params.logit_bias))(*params.logit_bias)
        yield "logit_bias", llama_cpp.llama_sampler_init_logit_bias(n_vocab, len(biases), biases)
    if params.mirostat:
        yield "temperature", llama_cpp.llama_sampler_init_temp(params.temperature)
        tau, eta = params.mirostat_tau, params.mirostat_eta
        if params.mirostat == 1:
            yield "mirostat", llama_cpp.llama_sampler_init_mirostat(n_vocab, seed, tau, eta, 100)
        else:
            yield "mirostat", llama_cpp.llama_sampler_init_mirostat_v2(seed, tau, eta)
        return
    for name in params.samplers:
        if name == "typ_p" and params.typical_p < 1:
            yield "typical", llama_cpp.llama_sampler_init_typical(params.typical_p, params.min_keep)
        elif name not in ("typ_p", "adaptive_p"):
            yield name, _sampler(name, params, n_vocab, vocab)
    if "adaptive_p" in params.samplers:
        target, decay = params.adaptive_target, params.adaptive_decay
        yield "adaptive_p", llama_cpp.llama_sampler_init_adaptive_p(target, decay, seed)
    else:
        yield "pick", llama_cpp.llama_sampler_init_dist(seed)


def _sampler(name: str, params: SamplingParams, n_vocab: int, vocab: Any) -> Any:
    init = {
        "penalties": lambda: llama_cpp.llama_sampler_init_penalties(
            n_vocab,
            _window(params.repeat_last_n),
            params.repeat_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        ),
        "dry": lambda: _dry(params, vocab),
        "top_n_sigma": lambda: llama_cpp.llama_sampler_init_top_n_sigma(params.top_n_sigma),
        "top_k": lambda: llama_cpp.llama_sampler_init_top_k(params.top_k),
        "top_p": lambda: llama_cpp.llama_sampler_init_top_p(params.top_p, params.min_keep),
        "min_p": lambda: llama_cpp.llama_sampler_init_min_p(params.min_p, params.min_keep),
        "xtc": lambda: llama_cpp.llama_sampler_init_xtc(
            params.xtc_probability, params.xtc_threshold, params.min_keep, params.seed or 0
        ),
        "temperature": lambda: llama_cpp.llama_sampler_init_temp_ext(
            params.temperature, params.dynatemp_range, params.dynatemp_exponent
        ),
        "infill": lambda: llama_cpp.llama_sampler_init_infill(vocab),
    }
    return init[name]()


def _dry(params: SamplingParams, vocab: Any) -> Any:
    breakers = [text.encode() for text in params.dry_sequence_breakers] if vocab else []
    return llama_cpp.llama_sampler_init_dry(
        vocab,
        params.dry_multiplier,
        params.dry_base,
        params.dry_allowed_length,
        _window(params.dry_penalty_last_n),
        (ctypes.c_char_p * len(breakers))(*breakers),
        len(breakers),
    )


def _window(n: int) -> int:
    return N_HISTORY_MAX if n < 0 else n


def _free(samplers: list[Any]) -> None:
    for sampler in samplers:
        llama_cpp.llama_sampler_free(sampler)
