"""Turns samples into rows: means and spreads, ratios of pairs, acceptance.

Owns the names of all reported values, which are llama-bench's where it reports the same. Knows nothing about layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from math import comb
from operator import add
from statistics import fmean, median, stdev
from typing import Any

from pymtp.benchmark.experiment import Arm, Results, Sample, Subject, Trial, Variant
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


class Row:
    """One arm in one test, over one category of prompts or all of them. None: there is no such value.

    Times of a round are means over all rounds; intervals contain the median with 95 % probability (fewer than 6
    pairs: their range).
    """

    def __init__(self, subject: Subject, category: str, pairs: Pairs, plain: Pairs, without: Pairs) -> None:
        """`plain`: what `pairs` are compared with; `without`: their prompts in a session without MTP."""
        first = next(iter(pairs.values()))
        test, arm = first.test, first.arm
        stats = reduce(add, (sample.stats for sample in pairs.values()), Stats())
        speeds = [tok_s(sample) for sample in pairs.values()]
        ratios = [tok_s(sample) / tok_s(plain[trial]) for trial, sample in pairs.items() if trial in plain]
        in_both = [(sample.stats, without[trial].stats) for trial, sample in pairs.items() if trial in without]
        costs = [1 - (ours.prompt_tok_s or 0.0) / (other.prompt_tok_s or 1.0) for ours, other in in_both]
        per_round_ms = 1000 / stats.rounds if stats.rounds else None
        self._set_what_runs(first.variant, subject)
        self.test = test.name
        self.n_prompt = test.n_prompt
        self.n_gen = test.n_gen
        self.n_depth = test.n_depth
        self.category = category
        self.draft_max = arm.draft_max
        self.temperature = arm.temperature
        self.accept = arm.accept
        """The method that was asked for."""
        self.acceptance = first.acceptance if arm.draft_max else "plain"
        """The method that was used."""
        self.forced_rate = arm.forced_rate
        self.is_valid_text = arm.forced_rate is None
        self.n_samples = len(pairs)
        self.avg_ts = fmean(speeds)
        """Tokens per second."""
        self.stddev_ts = stdev(speeds) if len(speeds) > 1 else 0.0
        self.speedup, self.speedup_low, self.speedup_high = _interval(ratios if arm.draft_max else [])
        """Ratio to plain decoding of the same prompt in the same repetition, or of a prompt alone to a session without
        MTP: the median of all pairs."""
        self.drafted = stats.drafted
        self.accepted = stats.accepted
        self.rounds = stats.rounds
        self.acceptance_rate = stats.acceptance_rate
        self.mean_acceptance_length = stats.mean_acceptance_length
        self.acceptance_per_position = tuple(stats.acceptance_per_position)
        self.draft_ms = per_round_ms and per_round_ms * stats.draft_s
        """Per round, like the next three."""
        self.verify_ms = per_round_ms and per_round_ms * stats.verify_s
        self.sample_ms = per_round_ms and per_round_ms * stats.sample_s
        self.python_ms = per_round_ms and per_round_ms * stats.python_s
        """Everything but passes and sampling."""
        self.prompt_ts = _prompt_tok_s(pairs.values())
        """Prompt tokens per second."""
        self.prompt_ts_without_mtp = _prompt_tok_s(without.values())
        cost = _interval(costs if arm.draft_max else [])
        self.mtp_prompt_cost, self.mtp_prompt_cost_low, self.mtp_prompt_cost_high = cost
        """How much slower prompts are than in a session without MTP, as a share: the median of all pairs."""
        self.memory_bytes = subject.memory_bytes
        self.memory_without_mtp_bytes = subject.memory_without_mtp_bytes

    def _set_what_runs(self, variant: Variant, subject: Subject) -> None:
        info, model, context, drafting = subject.info, variant.model, variant.context, variant.drafting
        self.pin = version_text()
        self.cpu_info = cpu()
        self.gpu_info = ", ".join(gpus()) if model.n_gpu_layers else ""
        self.backends = backend(model.n_gpu_layers)
        self.model_filename = info.path.name
        self.model_type = " ".join(filter(None, (info.architecture, info.quantization)))
        self.model_size = info.size_bytes
        """Bytes."""
        self.model_n_params = info.n_parameters
        self.model_sha256 = subject.sha256
        self.test_time = subject.test_time
        """When the variant's tests began: UTC, ISO 8601."""
        self.n_threads = subject.n_threads
        self.n_gpu_layers = model.n_gpu_layers
        self.flash_attn = context.flash_attn
        self.type_k = context.type_k
        self.type_v = context.type_v
        self.n_batch = context.n_batch
        self.n_ubatch = context.n_ubatch
        self.n_ctx = subject.n_ctx
        self.n_parallel = context.n_seq_max
        self.mtp_context = drafting.mtp_context
        self.draft_vocab = drafting.draft_vocab


def rows(results: Results) -> list[Row]:
    """A row for each variant, test, category and arm that has samples; plain decoding comes first."""
    found: list[Row] = []
    for variant, subject in results.subjects.items():
        of_variant = [sample for sample in results.samples if sample.variant == variant]
        for test in dict.fromkeys([*results.tests, *(sample.test for sample in of_variant)]):
            part = [sample for sample in of_variant if sample.test == test]
            categories = list(dict.fromkeys(sample.category for sample in part))
            for category in [ALL, *categories] if len(categories) > 1 else categories:
                samples = [sample for sample in part if category in (ALL, sample.category)]
                found += _rows_of_arms(subject, category, samples)
    return found


def _rows_of_arms(subject: Subject, category: str, samples: Sequence[Sample]) -> Iterator[Row]:
    arms: dict[Arm, Pairs] = {}
    without = {sample.trial: sample for sample in samples if sample.is_prompt_only}
    for sample in samples:
        # a prompt's plain arm is a session without heads: that is what MTP costs
        if not sample.is_prompt_only or not sample.test.n_gen:
            arms.setdefault(sample.arm, {})[sample.trial] = sample
    plain_arms = {arm.temperature: pairs for arm, pairs in arms.items() if not arm.draft_max}
    # samples come in rotating order
    for arm, pairs in sorted(arms.items(), key=lambda entry: _order(entry[0])):
        yield Row(subject, category, pairs, plain_arms.get(arm.temperature, {}), without)


def _order(arm: Arm) -> tuple[float, float, str, float]:
    k = float("inf") if arm.draft_max == "auto" else arm.draft_max
    return arm.temperature, k, arm.accept, arm.forced_rate or 0.0


def _interval(ratios: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """The median of all pairs and its interval; None where there are no pairs."""
    return median_ratio(ratios) if ratios else (None, None, None)


def _prompt_tok_s(samples: Iterable[Sample]) -> float | None:
    known = [sample.stats.prompt_tok_s for sample in samples if sample.stats.prompt_tok_s]
    return fmean(known) if known else None


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
