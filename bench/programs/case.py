"""What all programs get, and what each of them reports.

Knows no program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pymtp.benchmark.prompts import Prompt

Sampling = Mapping[str, float]
"""Sampling parameters under llama.cpp's names, the same for all programs."""


class ProgramFailed(Exception):
    """One line: which program failed, why, and where its log is."""


LLAMA_CPP_DEFAULTS = {"temperature": 0, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1}
"""What all programs are asked for where the caller says nothing else: a GGUF may bring its own defaults."""


@dataclass(frozen=True)
class Case:
    """A model, and how it is run. Paths are absolute: programs start in other folders."""

    model: Path
    draft_max: int
    """K: tokens that a round drafts, in programs that draft."""
    n_predict: int
    """Tokens to generate, without end-of-generation tokens."""
    end_tokens: tuple[int, ...]
    n_ctx: int
    n_threads: int
    n_gpu_layers: int
    """-1: all, if there is a GPU."""
    sampling: Sampling
    forced_length: float | None
    """Accept drafts at random, to this mean length; None: acceptance is not forced."""
    cuda_shared_bytes: int | None
    """Shared memory that pymtp's CUDA kernels may take per thread block, as on another GPU; None: all."""
    programs: Path
    """The folder of llama.cpp's own programs and of the unpatched libraries."""
    logs: Path
    """The folder of the programs' logs."""
    split_mode: str = "layer"
    """How several GPUs share the model: layer, tensor or none."""
    tensor_split: tuple[float, ...] = ()
    """Shares of the devices; empty: by their free memory."""
    rpc: tuple[str, ...] = ()
    """RPC servers of pymtp, host:port, that take layers; llama.cpp's own programs go without."""
    cache_type: str = "f16"
    """Of keys and values."""


@dataclass(frozen=True)
class Sample:
    """Figures of one answer. None: the program does not report it."""

    n_generated: int
    tok_s: float
    """Of the generation only: the first token comes with the prompt and does not count."""
    prompt_tok_s: float | None = None
    n_drafted: int | None = None
    n_accepted: int | None = None
    n_rounds: int | None = None
    """Verify passes."""


@dataclass(frozen=True)
class Memory:
    """A program's peak memory. None: unknown."""

    host_bytes: int | None
    """Resident, the mapped model file included."""
    device_bytes: int | None


class Program(Protocol):
    """A program that is ready to answer."""

    def answer(self, prompt: Prompt) -> Sample:
        """Generate an answer. Raises ProgramFailed."""

    def memory(self) -> Memory:
        """Peak memory so far."""

    def close(self) -> None:
        """End its processes."""
