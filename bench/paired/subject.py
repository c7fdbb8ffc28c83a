"""The measured model: loaded once for all schemes, with the tokens that they decode."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import llama_cpp

from pymtp import ContextParams
from pymtp.gguf.facts import model_facts
from pymtp.loading.vocabulary import Vocabulary

from .measure import N_CLOCKED, N_WARMUP
from .schemes import Plain
from .scripted import n_text
from .second_context import captured_log

TEXT = (
    "The harbour lies behind two long walls of grey stone. In the morning the boats come in with the tide, one after "
    "another, and the gulls follow them up to the steps where the fish are counted and sold. "
)
"""English prose, repeated in prompts."""
N_PROMPT = 96
"""Tokens of the prompt before the timed rounds."""


@dataclass(frozen=True)
class Options:
    """What to measure."""

    lengths: list[tuple[int, ...]]
    """Drafts per round; the numbers of an entry are used in turn."""
    n_rounds: int
    n_repeat: int
    n_prompt: int
    """Tokens of the timed prompts."""
    params: ContextParams
    n_gpu_layers: int

    @property
    def n_scripted(self) -> int:
        """Rounds of a repetition, including those that are not measured."""
        return N_WARMUP + self.n_rounds + N_CLOCKED


class Subject:
    """A loaded model. Raises SystemExit if it cannot be measured."""

    def __init__(self, path: Path, options: Options) -> None:
        self.path = path
        self.n_heads = model_facts(path).n_heads
        """Heads whose tensors are in the file."""
        if self.n_heads == 0:
            raise SystemExit(f"{path} has no usable MTP head")
        self.log: str
        """llama.cpp's log of loading the model."""
        self.handle, self.log = _load(path, options.n_gpu_layers)
        vocabulary = Vocabulary(self.handle, None)
        self._tokens = vocabulary.tokenize(TEXT)
        self.n_vocab = vocabulary.size
        vocabulary.close()
        self.text = self._continue(options)
        """The prompt of N_PROMPT tokens and the model's own continuation."""

    def prompt(self, n_tokens: int) -> list[int]:
        """`n_tokens` of English prose."""
        return (self._tokens * (n_tokens // len(self._tokens) + 1))[:n_tokens]

    def close(self) -> None:
        """Free the weights; all schemes must be closed."""
        llama_cpp.llama_model_free(self.handle)

    def _continue(self, options: Options) -> list[int]:
        tokens = self.prompt(N_PROMPT)
        n = len(tokens) + max(n_text(lengths, options.n_scripted) for lengths in options.lengths)
        if options.params.n_ctx and n > options.params.n_ctx:
            raise SystemExit(f"the rounds need {n} positions: use fewer --rounds, or a larger context (-c)")
        plain = Plain(self.handle, options.params)
        tokens.append(plain.begin(tokens))
        while len(tokens) < n:
            tokens += plain.verify(tokens[-1:], len(tokens) - 1)
        plain.close()
        return tokens


def _load(path: Path, n_gpu_layers: int) -> tuple[object, str]:
    params = llama_cpp.llama_model_default_params()
    params.load_mtp = True
    params.n_gpu_layers = n_gpu_layers
    with captured_log() as lines:
        handle = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    if not handle:
        raise SystemExit(f"{path}: llama.cpp cannot load this model")
    return handle, "".join(lines)
