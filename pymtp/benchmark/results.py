"""What was measured: samples, and what is known of the models that they are of.

Knows nothing of how it came about, or of statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pymtp.benchmark.memory import Memory
from pymtp.benchmark.plan import Arm, Setup, Turn, Workload
from pymtp.gguf.facts import GgufInfo
from pymtp.serving.statistics import Stats


@dataclass(frozen=True)
class Sample:
    """What one arm did in one turn."""

    setup: Setup
    test: Workload
    arm: Arm
    turn: Turn
    category: str
    is_prompt_only: bool
    """Whether it tells what the prompt takes in a session without MTP, and nothing else."""
    stats: Stats
    acceptance: str
    """How drafts were verified."""


@dataclass(frozen=True)
class Subject:
    """What is known of a setup once its model was loaded."""

    info: GgufInfo
    sha256: str
    """Of the model file; of a split model's first part."""
    n_threads: int
    n_ctx: int
    test_time: str = ""
    """When it began: UTC, ISO 8601."""
    without_mtp: Memory | None = None
    with_mtp: Memory | None = None


@dataclass
class Results:
    """What was measured so far; whole at any time."""

    subjects: dict[Setup, Subject] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Lines that say what else is to be known of them."""

    def note(self, line: str) -> None:
        """Add a line, once."""
        if line not in self.notes:
            self.notes.append(line)
