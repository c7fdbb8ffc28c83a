"""Turns samples into rows: means and spreads, ratios of pairs, acceptance.

Owns the names of all reported values, which are llama-bench's where it reports the same. Knows nothing about layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import comb
from operator import add
from statistics import fmean, median, stdev
from typing import Any, Literal

from pymtp.benchmark.experiment import Arm, Results, Sample, Subject, Trial, Variant, Workload
from pymtp.benchmark.provenance import backend, cpu, gpus
from pymtp.serving.statistics import Stats
from pymtp.version import version_text

ALL = "all"
"""The category of rows over all categories."""

Pairs = dict[Trial, Sample]

OF_VARIANT = (
    *("n_gpu_layers", "flash_attn", "type_k", "type_v", "n_batch", "n_ubatch", "n_parallel", "draft_vocab"),
    "mtp_context",
)
"""Fields of a row that are those of its variant."""
_STATS = ("drafted", "accepted", "rounds", "acceptance_rate", "mean_acceptance_length")


@dataclass(frozen=True)
class Row:
    """One arm in one test, over one category of prompts or all of them. None: there is no such value.

    Times of a round are means over all rounds; intervals contain the median with 95 % probability (fewer than 6
    pairs: their range).
    """

    pin: str
    cpu_info: str
    gpu_info: str
    backends: str
    model_filename: str
    model_type: str
    model_size: int
    """Bytes."""
    model_n_params: int
    model_sha256: str
    test_time: str
    """When the variant's tests began: UTC, ISO 8601."""
    n_threads: int
    n_gpu_layers: int
    flash_attn: str
    type_k: str
    type_v: str
    n_batch: int
    n_ubatch: int
    n_ctx: int
    n_parallel: int
    mtp_context: str
    draft_vocab: int | Literal["auto", "all"]
    test: str
    n_prompt: int
    n_gen: int
    n_depth: int
    category: str
    draft_max: int | Literal["auto"]
    temperature: float
    accept: str
    """The method that was asked for."""
    acceptance: str
    """The method that was used."""
    forced_rate: float | None
    is_valid_text: bool
    n_samples: int
    avg_ts: float
    """Tokens per second."""
    stddev_ts: float
    speedup: float | None
    """Ratio to plain decoding of the same prompt in the same repetition, or of a prompt alone to a session without MTP:
    the median of all pairs."""
    speedup_low: float | None
    speedup_high: float | None
    drafted: int
    accepted: int
    rounds: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    acceptance_per_position: tuple[float, ...]
    draft_ms: float | None
    """Per round, like the next three."""
    verify_ms: float | None
    sample_ms: float | None
    python_ms: float | None
    """Everything but passes and sampling."""
    prompt_ts: float | None
    """Prompt tokens per second."""
    prompt_ts_without_mtp: float | None
    mtp_prompt_cost: float | None
    """How much slower prompts are than in a session without MTP, as a share: the median of all pairs."""
    mtp_prompt_cost_low: float | None
    mtp_prompt_cost_high: float | None
    memory_bytes: int | None
    memory_without_mtp_bytes: int | None


def rows(results: Results) -> list[Row]:
    """A row for each variant, test, category and arm that has samples; plain decoding comes first."""
    found: list[Row] = []
    for variant, subject in results.subjects.items():
        common = _of_variant(variant, subject)
        of_variant = [sample for sample in results.samples if sample.variant == variant]
        for test in dict.fromkeys([*results.tests, *(sample.test for sample in of_variant)]):
            part = [sample for sample in of_variant if sample.test == test]
            for category, samples in _by_category(part):
                found += _rows_of_arms(common, test, category, samples)
    return found


def _by_category(samples: Sequence[Sample]) -> Iterator[tuple[str, list[Sample]]]:
    names = list(dict.fromkeys(sample.category for sample in samples))
    for name in [ALL, *names] if len(names) > 1 else names:
        yield name, [sample for sample in samples if name in (ALL, sample.category)]


def _rows_of_arms(common: dict[str, Any], test: Workload, category: str, samples: Sequence[Sample]) -> Iterator[Row]:
    arms: dict[Arm, Pairs] = {}
    without = {sample.trial: sample for sample in samples if sample.is_prompt_only}
    for sample in samples:
        # a prompt's plain arm is a session without heads: that is what MTP costs
        if not sample.is_prompt_only or not test.n_gen:
            arms.setdefault(sample.arm, {})[sample.trial] = sample
    plain_arms = {arm.temperature: pairs for arm, pairs in arms.items() if not arm.draft_max}
    # samples come in rotating order
    for arm, pairs in sorted(arms.items(), key=lambda entry: _order(entry[0])):
        yield _row(common, test, category, arm, pairs, plain_arms.get(arm.temperature, {}), without)


def _order(arm: Arm) -> tuple[float, float, str, float]:
    k = float("inf") if arm.draft_max == "auto" else arm.draft_max
    return arm.temperature, k, arm.accept, arm.forced_rate or 0.0


def _row(
    common: dict[str, Any], test: Workload, category: str, arm: Arm, pairs: Pairs, plain: Pairs, without: Pairs
) -> Row:
    stats = reduce(add, (sample.stats for sample in pairs.values()), Stats())
    speeds = [tok_s(sample) for sample in pairs.values()]
    ratios = [tok_s(sample) / tok_s(plain[trial]) for trial, sample in pairs.items() if trial in plain]
    in_both = [(sample.stats, without[trial].stats) for trial, sample in pairs.items() if trial in without]
    costs = [1 - (ours.prompt_tok_s or 0.0) / (plain.prompt_tok_s or 1.0) for ours, plain in in_both]
    per_round_ms = 1000 / stats.rounds if stats.rounds else None
    times: dict[str, Any] = {
        f"{part}_ms": per_round_ms and per_round_ms * getattr(stats, f"{part}_s")
        for part in ("draft", "verify", "sample", "python")
    }
    return Row(
        **common,
        test=test.name,
        **vars(test),
        category=category,
        **vars(arm),
        acceptance=next(iter(pairs.values())).acceptance if arm.draft_max else "plain",
        is_valid_text=arm.forced_rate is None,
        n_samples=len(pairs),
        avg_ts=fmean(speeds),
        stddev_ts=stdev(speeds) if len(speeds) > 1 else 0.0,
        **_interval("speedup", ratios if arm.draft_max else []),
        **{name: getattr(stats, name) for name in _STATS},
        acceptance_per_position=tuple(stats.acceptance_per_position),
        **times,
        prompt_ts=_prompt_tok_s(pairs.values()),
        prompt_ts_without_mtp=_prompt_tok_s(without.values()),
        **_interval("mtp_prompt_cost", costs if arm.draft_max else []),
    )


def _interval(name: str, ratios: Sequence[float]) -> dict[str, Any]:
    """The fields of a ratio; None where there are no pairs."""
    values = median_ratio(ratios) if ratios else (None,) * 3
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def _prompt_tok_s(samples: Iterable[Sample]) -> float | None:
    known = [sample.stats.prompt_tok_s for sample in samples if sample.stats.prompt_tok_s]
    return fmean(known) if known else None


def _of_variant(variant: Variant, subject: Subject) -> dict[str, Any]:
    """The fields that all rows of a variant have in common."""
    return {
        "pin": version_text(),
        "cpu_info": cpu(),
        "gpu_info": ", ".join(gpus()) if variant.model.n_gpu_layers else "",
        "backends": backend(variant.model.n_gpu_layers),
        "model_filename": subject.info.path.name,
        "model_type": " ".join(filter(None, (subject.info.architecture, subject.info.quantization))),
        "model_size": subject.info.size_bytes,
        "model_n_params": subject.info.n_parameters,
        "model_sha256": subject.sha256,
        **{name: value for name, value in vars(subject).items() if name not in ("info", "sha256")},
        **settings_of(variant),
    }


def settings_of(variant: Variant) -> dict[str, Any]:
    """The fields of a row that are those of its variant."""
    values = {**vars(variant.model), **vars(variant.context), **vars(variant.drafting)}
    values["n_parallel"] = variant.context.n_seq_max
    return {name: values[name] for name in OF_VARIANT}


def tok_s(sample: Sample) -> float:
    """Tokens per second of what the test times: the prompt, the rounds, or both."""
    stats, test = sample.stats, sample.test
    tokens = (stats.prompt_tokens if test.n_prompt else 0) + (stats.round_tokens if test.n_gen else 0)
    seconds = (stats.prompt_s if test.n_prompt else 0.0) + (stats.generation_s if test.n_gen else 0.0)
    return tokens / seconds if seconds > 0 else 0.0


def median_ratio(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The median of the ratios of pairs, at least one, and an interval that contains it with 95 % probability."""
    return (median(ratios), *median_interval(ratios))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """An interval that contains the median of the distribution of `values` with 95 % probability or more.

    Its ends are two of the values, and it holds for any distribution (the sign test's interval; Conover, Practical
    Nonparametric Statistics, 3.2). Fewer than 6 values give their whole range.
    """
    ordered = sorted(values)
    n, below, k = len(ordered), 0.0, 0
    while k < (n - 1) // 2 and below + comb(n, k) / 2**n <= 0.025:
        below += comb(n, k) / 2**n
        k += 1
    first = max(k - 1, 0)
    return ordered[first], ordered[n - 1 - first]
