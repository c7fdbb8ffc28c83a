"""Runs an experiment: loads one model after another, and lets the arms generate in turn.

Owns the models while they are measured. Knows nothing about statistics or how they are shown.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from pymtp.acceptance.forced import Forced, Scripted
from pymtp.benchmark.experiment import Arm, Experiment, Results, Sample, Subject, Trial, Variant, Workload, trials
from pymtp.benchmark.prompts import (
    BUILT_IN,
    Prompt,
    Text,
    open_vocabulary,
    prefix_for,
    prompts_for,
    synthetic,
    tokenized,
)
from pymtp.benchmark.provenance import sha256
from pymtp.drafting.params import DraftParams
from pymtp.engine.context import native_params
from pymtp.gguf.facts import find_draft_model, model_facts
from pymtp.gguf.passes import heads_of
from pymtp.model import Model
from pymtp.sampling.params import SamplingParams
from pymtp.serving.params import GenerationParams
from pymtp.serving.statistics import Stats

_N_WARMUP = 32
_CTX_BLOCK = 256


class Step(NamedTuple):
    """What is done next, and how much of it with the model that is loaded."""

    text: str
    n_done: int = 0
    n_all: int = 0
    """Samples."""


OnStep = Callable[[Step], object]


class _Work(NamedTuple):
    """A test, prepared for one model."""

    test: Workload
    prefix: list[int]
    prompts: list[Prompt]

    @property
    def n_ctx(self) -> int:
        return len(self.prefix) + max(len(prompt.tokens) for prompt in self.prompts) + self.test.n_gen + 1


def measure(
    experiment: Experiment, results: Results, *, texts: Sequence[Text] = BUILT_IN, on_step: OnStep = lambda step: None
) -> Iterator[Sample]:
    """Run all of `experiment` and add the samples to `results`; yields each sample as it is measured.

    Prompts are `texts`, or random tokens if an arm's acceptance is forced. `on_step` is called before each step. Raises
    what Model and Model.generate raise.
    """
    results.tests = list(experiment.tests)
    for variant in experiment.variants:
        on_step(Step(f"reading {variant.path.name}"))
        works = _prepare(variant, experiment, texts)
        n_ctx = -(-(max(work.n_ctx for work in works) + experiment.draft_max) // _CTX_BLOCK) * _CTX_BLOCK
        given = variant.drafting.draft_model
        draft_model, problem = (given, None) if given else find_draft_model(variant.path)
        info = model_facts(variant.path, draft_model)
        adapts = any(arm.draft_max == "auto" for arm in experiment.arms)
        drafts = experiment.draft_max > 0 and (info.has_heads or adapts)
        if experiment.draft_max > 0 and not info.has_heads:
            problem = problem or f"{variant.path.name} has no usable MTP head"
            results.note(f"{problem}: {'drafts by lookup, where K is auto' if adapts else 'plain decoding only'}")
        for path, scale in variant.model.adapters:
            results.note(f"{variant.path.name}: LoRA adapter {path}, scale {scale:g}")
        n_threads = native_params(variant.context, 0).n_threads
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        results.subjects[variant] = Subject(info, sha256(variant.path), n_threads, n_ctx, now)
        # one after the other: with little memory, two would not fit; without MTP, prompts alone if there are drafts
        needs_plain = not drafts or any(work.test.n_prompt for work in works)
        for with_mtp in [False] * needs_plain + [True] * drafts:
            memory, n_draft = ("memory_bytes", experiment.draft_max) if with_mtp else ("memory_without_mtp_bytes", 0)
            on_step(Step(f"loading {variant.path.name}" + ", with MTP" * with_mtp))
            with _load(variant, n_ctx, n_draft, by_heads=info.has_heads) as model:
                for note in filter(None, (model.room_note, model.draft_note if with_mtp else None)):
                    results.note(f"{variant.path.name}: {note}")
                stage = _Stage(experiment, variant, model, prompts_only=drafts and not with_mtp)
                yield from stage.play(works, results, on_step)
                used: dict[str, Any] = {memory: _memory_bytes(model)}
            results.subjects[variant] = replace(results.subjects[variant], **used)


@dataclass(frozen=True)
class _Stage:
    """A loaded model, and what to measure with it."""

    experiment: Experiment
    variant: Variant
    model: Model
    prompts_only: bool
    """Whether to measure only how long prompts take without MTP."""

    def arms(self, test: Workload) -> list[Arm]:
        plain = Arm(0, self.experiment.arms[0].temperature)
        if self.prompts_only:
            return [plain] if test.n_prompt else []
        arms = [arm for arm in self.experiment.arms if not arm.draft_max or self.model.session.n_draft_max]
        if test.n_gen:
            return arms
        # how a prompt is fed to the heads does not depend on how they draft later; without heads it was measured before
        return [arm for arm in arms if arm.draft_max][:1] or [plain]

    def play(self, works: Sequence[_Work], results: Results, on_step: OnStep) -> Iterator[Sample]:
        works = [work for work in works if self.arms(work.test)]
        n_repeat = self.experiment.n_repeat
        n_done, n_all = 0, sum(n_repeat * len(work.prompts) * len(self.arms(work.test)) for work in works)
        if self.experiment.warms_up:
            on_step(Step("warming up", 0, n_all))
            # builds graphs and touches pages; what is already in the cache changes neither
            shapes = {(work.test.n_prompt, work.test.n_gen > 0): work._replace(prefix=[]) for work in works}
            for work in shapes.values():
                for arm in self.arms(work.test):
                    self._generate(work, arm, Trial(0, 0), min(work.test.n_gen, _N_WARMUP))
        for work in works:
            for trial, arms in trials(len(work.prompts), n_repeat, self.arms(work.test)):
                for arm in arms:
                    category = work.prompts[trial.prompt].category
                    text = " ".join(filter(None, (work.test.name, category)))
                    how = f"K = {arm.draft_max}" if arm.draft_max else "plain"
                    text = f"{text}, {how}, {trial.repetition + 1} of {n_repeat}"
                    on_step(Step(text, n_done, n_all))
                    n_gen = 0 if self.prompts_only else work.test.n_gen
                    made = self._generate(work, arm, trial, n_gen)
                    sample = Sample(self.variant, work.test, arm, trial, category, self.prompts_only, *made)
                    results.samples.append(sample)
                    yield sample
                    n_done += 1
            on_step(Step(f"{work.test.name} done", n_done, n_all))

    def _generate(self, work: _Work, arm: Arm, trial: Trial, n_gen: int) -> tuple[Stats, str]:
        """Generate after one prompt, or after some of its category together; the first tokens come with the prompts."""
        self.model.slots.empty()
        if work.prefix:
            self._run([(work.prefix, self._params(arm, trial, 1))] * self.variant.context.n_seq_max)
        params = self._params(arm, trial, n_gen + 1)
        asked = []
        turned = work.prompts[trial.prompt :] + work.prompts[: trial.prompt]
        alike = [prompt for prompt in turned if prompt.category == turned[0].category]
        for prompt in islice(cycle(alike), self.variant.context.n_seq_max):
            n = min(params.max_tokens, len(prompt.answer))
            own = replace(params, max_tokens=n, forced=Scripted(prompt.answer)) if prompt.answer else params
            asked.append(([*work.prefix, *prompt.tokens], own))
        return self._run(asked)

    def _run(self, asked: Sequence[tuple[list[int], GenerationParams]]) -> tuple[Stats, str]:
        before = self.model.stats
        # submitted together, so that all are in the first pass
        generations = self.model.call(lambda: [self.model.generate(prompt, params) for prompt, params in asked])
        for generation in generations:
            "".join(generation)
        return self.model.stats - before, generations[0].acceptance

    def _params(self, arm: Arm, trial: Trial, max_tokens: int) -> GenerationParams:
        # without a seed, drafts are picked as they are for most people; with one, the adaptive length would also have
        # to learn the costs again each time
        is_free = arm.draft_max == "auto" or (arm.draft_max > 0 and arm.accept == "auto")
        seed = None if is_free else self.experiment.seed + trial.repetition
        return GenerationParams(
            SamplingParams(temperature=arm.temperature, seed=seed),
            max_tokens=max_tokens,
            ignore_eos=True,
            draft_max=arm.draft_max,
            accept=arm.accept,
            forced=self._forced(arm, trial),
            cache_prompt=True,
        )

    def _forced(self, arm: Arm, trial: Trial) -> Forced | None:
        if arm.forced_rate is None or not arm.draft_max:
            return None
        n_draft = self.model.session.n_draft_max if arm.draft_max == "auto" else arm.draft_max
        random = np.random.default_rng((self.experiment.seed, *trial)).random
        return Forced([arm.forced_rate**i for i in range(1, n_draft + 1)], random)


def _prepare(variant: Variant, experiment: Experiment, texts: Sequence[Text]) -> list[_Work]:
    if any(arm.forced_rate is not None for arm in experiment.arms):
        prompts = synthetic(model_facts(variant.path).n_vocab, seed=experiment.seed)
    else:
        with open_vocabulary(variant.path) as vocabulary:
            prompts = [tokenized(text, vocabulary) for text in texts]
    return [_Work(test, prefix_for(test, prompts), prompts_for(test, prompts)) for test in experiment.tests]


def _load(variant: Variant, n_ctx: int, draft_max: int, *, by_heads: bool) -> Model:
    drafting = DraftParams(draft="none")
    if draft_max:
        drafting = replace(variant.drafting, draft="auto" if by_heads else "lookup", draft_max=draft_max)
    return Model(variant.path, model=variant.model, context=variant.context, drafting=drafting, n_ctx=n_ctx)


def _memory_bytes(model: Model) -> int:
    """The memory of a model: weights and caches as computed from its files, compute buffers as the session reports."""
    info, memory, session = model.info, model.memory, model.session
    # llama.cpp does not load heads that are not used
    unused_bytes = 0 if session.n_draft_max else sum(head.size_bytes for head in heads_of(info.model_file))
    cache_bytes = memory.kv_bytes + memory.heads_kv_bytes + memory.state_bytes
    return info.size_bytes - unused_bytes + cache_bytes + session.compute_bytes
