"""What all programs are given alike, and what each of them reports back.

Knows no program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pymtp.benchmark.prompts import Prompt

Sampling = Mapping[str, float]
"""Parameters under llama.cpp's names, the same for all programs."""


class ProgramFailed(Exception):
    """One line: which program failed, why, and where its log lies."""


@dataclass(frozen=True)
class Case:
    """A model, and how it is run. Paths are absolute: programs start in folders of their own."""

    model: Path
    draft_max: int
    """K: tokens that a round drafts, in programs that draft."""
    n_predict: int
    """Tokens to generate; those that end a text are barred."""
    end_tokens: tuple[int, ...]
    n_ctx: int
    n_threads: int
    n_gpu_layers: int
    """-1: all, if there is a GPU."""
    sampling: Sampling
    forced_length: float | None
    """Drafts are accepted by chance, to this mean length; None: where the target agrees."""
    programs: Path
    """The folder of llama.cpp's own programs and of the unpatched libraries."""
    logs: Path
    """The folder of the programs' logs."""


@dataclass(frozen=True)
class Sample:
    """One answer. None: the program does not say."""

    n_generated: int
    tok_s: float
    """Of the generation alone: the first token comes with the prompt and does not count."""
    prompt_tok_s: float | None = None
    n_drafted: int | None = None
    n_accepted: int | None = None
    n_rounds: int | None = None
    """Verify passes."""


@dataclass(frozen=True)
class Memory:
    """A program's peaks. None: unknown."""

    host_bytes: int | None
    """Resident, the mapped model file included."""
    device_bytes: int | None


class Program(Protocol):
    """A program that is ready to answer."""

    def answer(self, prompt: Prompt) -> Sample:
        """Generate. Raises ProgramFailed."""

    def memory(self) -> Memory:
        """The peaks so far."""

    def close(self) -> None:
        """End its processes."""
