"""Counts and times of a server, for Prometheus.

Owns the form of what is counted. Names are llama-server's where it has one.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from starlette.requests import Request
from starlette.responses import Response

from pymtp.serving.statistics import Stats

from .errors import turned_off
from .served_model import BOUNDS_S, Histogram, ServedModel, served_by

_PREFIX = "llamacpp:"
"""The prefix of names that llama-server has too, so that its monitors find them."""
_OWN_PREFIX = "pymtp:"
"""The prefix of all other names."""


async def metrics(request: Request) -> Response:
    served = served_by(request)
    if not served.settings.has_metrics:
        raise turned_off("This server does not support metrics endpoint. Start it with `--metrics`")
    model = served.model
    stats, n_cells, lookup = await asyncio.to_thread(
        lambda: (model.stats, model.slots.n_cells_used(), model.lookup_bytes())
    )
    body = "\n".join(_lines(served, stats, n_cells, lookup)) + "\n"
    headers = {"Process-Start-Time-Unix": str(int(served.started_at))}
    return Response(body, headers=headers, media_type="text/plain; version=0.0.4")


def _lines(served: ServedModel, stats: Stats, n_cells: int, n_lookup_bytes: int) -> Iterator[str]:
    counts, model = served.counts, served.model
    n_running, passes = min(len(served.answers), served.n_slots), model.session.counters.n_trunk_passes
    lengths = stats.rounds_per_length
    yield from _values(
        "counter",
        ("prompt_tokens_total", "Prompt tokens processed, without cached ones", stats.prompt_tokens),
        ("prompt_tokens_cached_total", "Prompt tokens that were in the cache", counts.n_cached),
        ("prompt_seconds_total", "Time spent on prompts", stats.prompt_s),
        ("tokens_predicted_total", "Tokens generated", stats.generated_tokens),
        ("tokens_predicted_seconds_total", "Time spent on generating", stats.generation_s),
        ("n_decode_total", "Passes of the target", passes),
        ("n_tokens_max", "Longest prompt with its answer", counts.n_tokens_max),
        ("spec_decode_num_draft_tokens_total", "Draft tokens proposed", stats.drafted),
        ("spec_decode_num_accepted_tokens_total", "Draft tokens accepted", stats.accepted),
        ("spec_decode_num_drafts_total", "Rounds with drafts", stats.rounds - lengths.get(0, 0)),
    )
    yield from _values(
        "gauge",
        ("prompt_tokens_seconds", "Prompt tokens a second", stats.prompt_tok_s or 0),
        ("predicted_tokens_seconds", "Generated tokens a second", stats.generation_tok_s or 0),
        ("requests_processing", "Answers that are being made", n_running),
        ("requests_deferred", "Answers that wait for a slot", served.n_waiting),
        ("kv_cache_usage_ratio", "Part of the cache that is in use", n_cells / model.session.n_cells),
        ("n_busy_slots_per_decode", "Sequences in a pass", stats.rounds / max(passes, 1)),
    )
    yield from _values(
        "gauge",
        ("lookup_bytes", "Host memory of the texts in which drafts are looked up", n_lookup_bytes),
        ("draft_tokens_per_round", "Draft tokens of a round, on average", stats.drafted / max(stats.rounds, 1)),
        prefix=_OWN_PREFIX,
    )
    name = _PREFIX + "spec_decode_num_accepted_tokens_per_pos_total"
    yield from _labelled(name, "Draft tokens accepted, by position", "position", enumerate(stats.accepted_per_position))
    text = "Rounds, by the draft tokens that they verified"
    yield from _labelled(_OWN_PREFIX + "rounds_total", text, "drafts", lengths.items())
    name, ended = _OWN_PREFIX + "answers_total", sorted(counts.ended.items())
    yield from _labelled(name, "Answers, by how they ended", "reason", ended)
    yield from _histogram("time_to_first_token_seconds", "From the request to the first token", counts.first_token)
    yield from _histogram("inter_token_seconds", "Between tokens of an answer", counts.between_tokens)


def _values(kind: str, *items: tuple[str, str, float], prefix: str = _PREFIX) -> Iterator[str]:
    for name, text, value in items:
        yield from _metric(prefix + name, kind, text, [("", value)])


def _labelled(name: str, text: str, label: str, values: Iterable[tuple[object, int]]) -> Iterator[str]:
    return _metric(name, "counter", text, [(f'{{{label}="{each}"}}', n) for each, n in values])


def _histogram(name: str, text: str, histogram: Histogram) -> Iterator[str]:
    bounds, totals = (*BOUNDS_S, "+Inf"), list(accumulate(histogram.counts))
    samples = [(f'_bucket{{le="{bound}"}}', total) for bound, total in zip(bounds, totals, strict=True)]
    more = [("_sum", histogram.sum_s), ("_count", totals[-1])]
    return _metric(_OWN_PREFIX + name, "histogram", text, [*samples, *more])


def _metric(name: str, kind: str, text: str, samples: Sequence[tuple[str, float]]) -> Iterator[str]:
    """The lines of a metric. `samples`: what follows the name, and values."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for suffix, value in samples:
        yield f"{name}{suffix} {value:.9g}" if isinstance(value, float) else f"{name}{suffix} {value}"
