"""Counts and times of a server, for Prometheus.

Owns the form of what is counted. Names are llama-server's where it has one.
"""

import asyncio
from collections.abc import Iterable, Iterator

from starlette.requests import Request
from starlette.responses import Response

from pymtp.serving.statistics import Stats

from .counts import OWN_PREFIX, PREFIX, head
from .errors import turned_off
from .served_model import ServedModel, served_by


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
    per_position = stats.accepted_per_position
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
        ("spec_decode_num_drafts_total", "Rounds", stats.rounds),
    )
    yield from _values(
        "gauge",
        ("prompt_tokens_seconds", "Prompt tokens a second", stats.prompt_tok_s or 0),
        ("predicted_tokens_seconds", "Generated tokens a second", stats.generation_tok_s or 0),
        ("requests_processing", "Answers that are being made", n_running),
        ("requests_deferred", "Answers that wait for a slot", served.n_waiting),
        ("kv_cache_usage_ratio", "Part of the cache that is in use", n_cells / model.session.n_cells),
        ("n_busy_slots_per_decode", "Sequences in a pass", (stats.rounds or 0) / max(passes, 1)),
    )
    yield from _values(
        "gauge",
        ("lookup_bytes", "Host memory of the texts in which drafts are looked up", n_lookup_bytes),
        ("draft_tokens_per_round", "Draft tokens of a round, on average", stats.drafted / max(stats.rounds, 1)),
        prefix=OWN_PREFIX,
    )
    name = PREFIX + "spec_decode_num_accepted_tokens_per_pos_total"
    yield from head(name, "counter", "Draft tokens accepted, by position")
    for position, n in enumerate(per_position):
        yield f'{name}{{position="{position}"}} {n}'
    name = OWN_PREFIX + "rounds_total"
    yield from head(name, "counter", "Rounds, by the draft tokens that they verified")
    for length, n in stats.rounds_per_length.items():
        yield f'{name}{{drafts="{length}"}} {n}'
    name = OWN_PREFIX + "answers_total"
    yield from head(name, "counter", "Answers, by how they ended")
    for reason, n in sorted(counts.ended.items()):
        yield f'{name}{{reason="{reason}"}} {n}'
    yield from counts.first_token.lines("time_to_first_token_seconds", "From the request to the first token")
    yield from counts.between_tokens.lines("inter_token_seconds", "Between tokens of an answer")


def _values(kind: str, *items: tuple[str, str, float], prefix: str = PREFIX) -> Iterable[str]:
    for name, text, value in items:
        yield from head(prefix + name, kind, text)
        yield f"{prefix}{name} {value:.9g}" if isinstance(value, float) else f"{prefix}{name} {value}"
