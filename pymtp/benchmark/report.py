"""Formats rows: CSV, JSON and JSON lines for programs, which carry every field of a row under its name; Markdown for
people that fits a screen and an issue, with the provenance of the figures, and a verdict.

Knows the fields of a row; nothing about how they were measured. No users, paths or texts are written.
"""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pymtp.benchmark.experiment import Variant
from pymtp.benchmark.rows import ALL, OF_VARIANT, Row, settings_of
from pymtp.benchmark.tables import columns, fill, narrow

_N_POSITIONS = 4

_TEST = columns("test=test", "K=k:s")
_VARIED = columns("temp=temperature:g", "accept=accept", "forced=forced_rate:g")
"""Shown if rows differ in them."""
_TEXT = columns("text=category")
_SPEED = columns("tok/s=speed:s", "speed-up=speedup_text:s")
_DRAFTS = columns("accepted=acceptance_rate:.3f", "length=mean_acceptance_length:.2f", "by position=positions")
_ROUND = columns(
    *("draft ms=draft_ms:.2f", "verify ms=verify_ms:.2f", "sample ms=sample_ms:.2f", "Python ms=python_ms:.2f"),
)
_PROMPT = columns("prompt tok/s=prompt_ts:.1f", "without MTP=prompt_ts_without_mtp:.1f", "MTP costs=cost_text:s")
_MODEL = columns(
    *("model=model_filename", "type=model_type", "backend=backends", "threads=n_threads:d", "ngl=n_gpu_layers:d"),
    *("fa=flash_attn", "ctk=type_k", "ctv=type_v", "b=n_batch:d", "ub=n_ubatch:d", "parallel=n_parallel:d"),
    "draft vocab=draft_vocab:s",
)

_NOT_VALID = "Drafts were accepted at random and prompts are random tokens: the text is not valid model output."
_EXPLAINED = (
    "K: draft tokens per round; 0: plain decoding; any: a prompt takes as long whatever K is. tok/s: mean and standard "
    "deviation. Speed-up: over plain decoding of the same prompt in the same repetition, for prompts alone over a "
    "session without MTP, which ran before and not in turn; the median of all pairs, and an interval that contains it "
    "with 95 % probability (fewer than 6 pairs: their range). Accepted: share of the drafted tokens; length: mean "
    "acceptance length. Sample: sampling, and all else in a round."
)
_MEMORY_EXPLAINED = "weights and K/V from the shapes in the GGUF, compute buffers as the session reports them"


def write(form: str, rows: Sequence[Row], notes: Sequence[str] = ()) -> str:
    """The rows as md, csv, json or jsonl; "" for none. `notes` apply to md only."""
    values = [vars(row) for row in rows]
    if form == "md":
        return _markdown(rows, notes)
    if form == "csv":
        return _csv(values)
    if form == "json":
        return json.dumps(values, ensure_ascii=False, indent=2) + "\n"
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in values) if form == "jsonl" else ""


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows([_flat(value) for value in row.values()] for row in rows)
    return file.getvalue()


def _flat(value: Any) -> Any:
    """A value for one cell: positions joined, true and false as numbers."""
    if isinstance(value, tuple):
        return " ".join(f"{one:.4f}" for one in value)
    return int(value) if isinstance(value, bool) else value


def _markdown(rows: Sequence[Row], notes: Sequence[str]) -> str:
    """A report on `rows`, at least one; at most 100 columns wide."""
    parts = [] if all(row.is_valid_text for row in rows) else [fill(_NOT_VALID)]
    groups = {variant_key(row): [one for one in rows if variant_key(one) == variant_key(row)] for row in rows}
    for group in groups.values():
        parts += _group(group)
    if len(groups) > 1:
        parts += _side_by_side(rows)
    first, hashes = rows[0], dict.fromkeys(f"{row.model_filename} sha256 {row.model_sha256}" for row in rows)
    machine = fill(f"{first.cpu_info}{first.gpu_info and ', '}{first.gpu_info}. {first.pin}.")
    parts += [*map(fill, notes), fill(_EXPLAINED), "\n".join([machine, *hashes]), *map(fill, _verdicts(rows))]
    return "\n\n".join(parts) + "\n"


def _group(rows: Sequence[Row]) -> list[str]:
    varied = [column for column in _VARIED if _varies(rows, column[1])]
    overall = in_all(rows)
    first = [_cells(row) for row in overall]
    parts = [fill(_subject(rows[0])), *narrow([*_TEST, *varied], [[*_SPEED, *_DRAFTS], _ROUND, _PROMPT], first)]
    if by_text := [_cells(row) for row in rows if row not in overall]:
        parts += ["By kind of text:", *narrow([*_TEST, *_TEXT, *varied], [[*_SPEED, *_DRAFTS[:2]]], by_text)]
    return [*parts, *_memory(rows[0])]


def in_all(rows: Sequence[Row]) -> list[Row]:
    """The rows over all kinds of text; of a test that has one kind, its rows."""
    summed = {(variant_key(row), row.test) for row in rows if row.category == ALL}
    return [row for row in rows if row.category == ALL or (variant_key(row), row.test) not in summed]


def _side_by_side(rows: Sequence[Row]) -> list[str]:
    """All variants in one table, with what differs between them."""
    found = {each: {str(getattr(row, each[1], "")) for row in rows} for each in [*_MODEL, *_TEST, *_VARIED]}
    columns = [column for column, values in found.items() if len(values) > 1]
    cells = [_cells(row) for row in in_all(rows)]
    return ["All of them:", *narrow([*columns, ("K", "k", "s")], [_SPEED], cells)]


def _memory(row: Row) -> list[str]:
    without = " without" if row.memory_bytes is not None else ""
    sizes = [(row.memory_bytes, " with MTP"), (row.memory_without_mtp_bytes, without)]
    known = [f"{_mib(size)}{what}" for size, what in sizes if size is not None]
    place = f"Memory, with a context of {row.n_ctx} tokens"
    return [fill(f"{place}: {', '.join(known)} ({_MEMORY_EXPLAINED}).")] if known else []


def _varies(rows: Sequence[Row], name: str) -> bool:
    # plain decoding has no drafts to accept
    return len({getattr(row, name) for row in rows if row.draft_max or name == "temperature"}) > 1


def _cells(row: Row) -> dict[str, Any]:
    rates = [f"{rate:.2f}" for rate in row.acceptance_per_position]
    is_both = bool(row.n_prompt and row.n_gen)  # the speed of a prompt alone is the row's own
    return {
        **vars(row),
        "category": row.category or None,
        "k": str(row.draft_max) if row.n_gen or not row.draft_max else "any",
        "accept": row.accept if row.draft_max else None,
        "speed": f"{row.avg_ts:.1f}" + (f" ± {row.stddev_ts:.1f}" if row.n_samples > 1 else ""),
        "speedup_text": gain_text(row),
        "positions": " ".join(rates[:_N_POSITIONS] + ["…"] * (len(rates) > _N_POSITIONS)) or None,
        "prompt_ts": row.prompt_ts if is_both else None,
        "prompt_ts_without_mtp": row.prompt_ts_without_mtp if is_both else None,
        "cost_text": _cost(row) if is_both else None,
    }


def _cost(row: Row) -> str | None:
    if row.mtp_prompt_cost is None or row.mtp_prompt_cost_low is None or row.mtp_prompt_cost_high is None:
        return None
    # "to" and not "-": a cost within the noise can be negative
    return f"{row.mtp_prompt_cost:.0%} ({row.mtp_prompt_cost_low:.0%} to {row.mtp_prompt_cost_high:.0%})"


def _subject(row: Row) -> str:
    texts = [
        f"**{row.model_filename}**: {row.model_type}",
        _mib(row.model_size),
        f"{_count(row.model_n_params)} parameters",
        row.backends,
        f"{row.n_threads} thread" + "s" * (row.n_threads != 1),
        *unusual(row),
    ]
    return ", ".join(filter(None, texts))


def unusual(row: Row) -> list[str]:
    """The settings that are not the defaults."""
    titles = {name: title for title, name, _ in _MODEL}
    defaults, values = settings_of(Variant(Path())), vars(row)
    return [f"{titles.get(name, name)} {values[name]}" for name in OF_VARIANT if values[name] != defaults[name]]


def variant_key(row: Row) -> tuple[Any, ...]:
    """A key that is equal for rows of the same variant."""
    return tuple(getattr(row, name) for name in ("model_sha256", "model_filename", "n_threads", *OF_VARIANT))


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"


def _count(n: int) -> str:
    return f"{n / 1e9:.2f} B" if n >= 1e9 else f"{n / 1e6:.1f} M"


def _verdicts(rows: Sequence[Row]) -> list[str]:
    """Sentences about the tests that generate, over all kinds of text."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in in_all(rows):
        if row.speedup is not None and row.n_gen:
            found.setdefault((*variant_key(row), row.test, row.temperature, row.forced_rate), []).append(row)
    return [_verdict(group, named=len(found) > 1) for group in found.values()]


def _verdict(rows: Sequence[Row], *, named: bool) -> str:
    best = max(rows, key=lambda row: row.speedup or 0)
    auto = next((row for row in rows if row.draft_max == "auto" and row is not best), None)
    where = f"{best.test}, temperature {best.temperature:g}"
    if named:
        where = f"{best.model_filename}, {best.n_threads} thread{'s' * (best.n_threads != 1)}, {where}"
    if best.forced_rate is not None:
        where += f", acceptance forced to {best.forced_rate:g}"
    name = "auto" if best.draft_max == "auto" else f"K = {best.draft_max}"
    text = f"{name} makes {gain_text(best)} times the speed of plain decoding"
    if auto is not None:
        text += f", auto {gain_text(auto)}"
    return f"Verdict ({where}): {_advice(best)}: {text}."


def _advice(best: Row) -> str:
    low, high = best.speedup_low or 0, best.speedup_high or 0
    if (best.speedup or 0) <= 1:
        return "leave drafting off (--draft none)" if high < 1 else "drafting gains nothing"
    if best.n_samples < 6 or low <= 1:
        return "drafting may pay, but the spread is too large to be sure (-r: more repetitions)"
    return "drafting pays"


def gain_text(row: Row) -> str | None:
    """The speed-up, and its interval if it comes of several pairs; None if there is none."""
    if row.speedup is None:
        return None
    is_interval = row.speedup_low != row.speedup_high
    return f"{row.speedup:.2f}" + (f" ({row.speedup_low:.2f}-{row.speedup_high:.2f})" if is_interval else "")
