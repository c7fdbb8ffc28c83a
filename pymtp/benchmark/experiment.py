"""What to measure: variants of models, tests, and the arms that are compared in each; and what was measured.

Owns the order in which arms take turns. Knows no loaded model, and no clock.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

from pymtp.drafting.params import DraftParams
from pymtp.drafting.policy import AUTO_DRAFT_MAX
from pymtp.engine.context import ContextParams
from pymtp.errors import require
from pymtp.gguf.facts import GgufInfo
from pymtp.loading.params import ModelParams
from pymtp.serving.params import Accept
from pymtp.serving.statistics import Stats


@dataclass(frozen=True)
class Variant:
    """A model and a way to load it, as Model takes them: everything that is fixed for its generations."""

    path: Path
    model: ModelParams = field(default=ModelParams(), hash=False)  # it may hold lists, like drafting
    context: ContextParams = ContextParams()
    """The tests decide its size; all of its sequences are generated together."""
    drafting: DraftParams = field(default=DraftParams(), hash=False)
    """The arms say whether to draft, and how much."""


@dataclass(frozen=True)
class Workload:
    """A test: a prompt, tokens to generate, or both in one test as with llama-bench's `-pg`."""

    n_prompt: int = 0
    """Tokens of the prompt; 0: prompts have their own length and are not timed."""
    n_gen: int = 0
    """Tokens that rounds generate; 0: none."""
    n_depth: int = 0
    """Tokens in the cache before the test begins."""

    def __post_init__(self) -> None:
        require(self.n_prompt + self.n_gen > 0, "n_gen", "1 or more where there is no prompt", self.n_gen)

    @property
    def name(self) -> str:
        """Its name, as in llama-bench."""
        parts = [f"pp{self.n_prompt}"] * (self.n_prompt > 0) + [f"tg{self.n_gen}"] * (self.n_gen > 0)
        return "+".join(parts) + (f" @ d{self.n_depth}" if self.n_depth else "")


@dataclass(frozen=True)
class Arm:
    """One of the ways to generate that are compared."""

    draft_max: int | Literal["auto"] = 0
    """K; 0: plain decoding."""
    temperature: float = 0.0
    accept: Accept = "auto"
    forced_rate: float | None = None
    """Accept each draft with this probability, whatever the target's logits; None: acceptance is not forced."""


@dataclass(frozen=True)
class Experiment:
    """Every arm in every test with every variant."""

    variants: tuple[Variant, ...]
    tests: tuple[Workload, ...]
    arms: tuple[Arm, ...] = (Arm(), Arm("auto"))
    n_repeat: int = 5
    warms_up: bool = True
    """Whether each arm generates some tokens before anything is measured."""
    seed: int = field(default=1, kw_only=True)

    @property
    def draft_max(self) -> int:
        """The most tokens that a round drafts in any arm."""
        return max((AUTO_DRAFT_MAX if arm.draft_max == "auto" else arm.draft_max for arm in self.arms), default=0)


def make_arms(
    draft_max: Sequence[int | Literal["auto"]],
    temperatures: Sequence[float] = (0.0,),
    accept: Sequence[Accept] = ("auto",),
    forced_rates: Sequence[float | None] = (None,),
) -> tuple[Arm, ...]:
    """All combinations, each once; plain decoding at each temperature always comes first."""
    arms: dict[Arm, None] = {}
    for temperature in temperatures:
        arms[Arm(0, temperature)] = None
        for k, method, rate in product([k for k in draft_max if k], accept, forced_rates):
            arms[Arm(k, temperature, method, rate)] = None
    return tuple(arms)


class Trial(NamedTuple):
    """One prompt in one repetition: every arm generates once."""

    prompt: int
    """Its index."""
    repetition: int


def trials(n_prompts: int, n_repeat: int, arms: Sequence[Arm]) -> Iterator[tuple[Trial, list[Arm]]]:
    """Each prompt in each repetition, with the arms in rotating order.

    So whatever else the machine does affects all arms alike, and none is always the first.
    """
    for i, (repetition, prompt) in enumerate(product(range(n_repeat), range(n_prompts))):
        first = i % len(arms)
        yield Trial(prompt, repetition), [*arms[first:], *arms[:first]]


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
