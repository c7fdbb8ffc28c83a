"""The results of a benchmark: samples, and facts about the measured models.

Knows nothing about measuring or statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pymtp.benchmark.experiment import Arm, Trial, Variant, Workload
from pymtp.gguf.facts import GgufInfo
from pymtp.serving.statistics import Stats


@dataclass(frozen=True)
class Sample:
    """What one arm generated in one trial."""

    variant: Variant
    test: Workload
    arm: Arm
    trial: Trial
    category: str
    is_prompt_only: bool
    """Whether it only measures the prompt in a session without MTP."""
    stats: Stats
    acceptance: str
    """The acceptance method."""


@dataclass(frozen=True)
class Subject:
    """Facts about a variant that are known once its model is loaded."""

    info: GgufInfo
    sha256: str
    """Of the model file; of the first part if it is split."""
    n_threads: int
    n_ctx: int
    test_time: str = ""
    """When its tests began: UTC, ISO 8601."""
    memory_bytes: int | None = None
    memory_without_mtp_bytes: int | None = None


@dataclass
class Results:
    """What was measured so far; valid at any time."""

    subjects: dict[Variant, Subject] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    tests: list[Workload] = field(default_factory=list)
    """In the order in which they are reported."""
    notes: list[str] = field(default_factory=list)
    """Lines of remarks for the report."""

    def note(self, line: str) -> None:
        """Add a line, once."""
        if line not in self.notes:
            self.notes.append(line)
