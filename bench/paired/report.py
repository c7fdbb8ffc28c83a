"""Formats the results as Markdown, readable at 100 columns."""

from __future__ import annotations

from typing import Any

from pymtp.benchmark.tables import columns, fill, markdown

from .subject import Options
from .table import Table

_TIMES = columns(
    *("K=k", "scheme=scheme", "ms/round=ms_round:.3f", "IQR=iqr_ms:.3f", "ms/token=ms_token:.3f"),
    *("of two contexts=of_two_contexts:.2f", "Python ms=python_ms:.3f"),
)
_WORK = columns(
    *("K=k", "scheme=scheme", "builds: trunk=trunk_builds:.2f", "heads=head_builds:.2f", "head passes=head_passes:.2f"),
    *("hidden B=hidden_bytes:,.0f", "outputs B=output_bytes:,.0f", "buffers MiB=compute_mib:.2f"),
)
_PROMPTS = columns(
    *("model=model", "heads=heads", "tokens=n_tokens:d", "tok/s=tok_s:.0f", "IQR=iqr_tok_s:.0f"),
    *("loss %=loss_percent:.1f", "heads %=heads_percent:.1f", "floor %=floor_percent:.1f"),
)

_NOTES = (
    "A round drafts K tokens, verifies K + 1 rows, picks the most likely token after each row and rolls back; plain: "
    "one token. Acceptance is scripted, 0 to K in turn, so ms/token says nothing about real texts. Of two contexts: "
    "the median of the ratio, round by round. Python ms: the part of a round outside of native code, NumPy's picks "
    "included. Builds, passes and bytes are per round; bytes are copied between host and device. Buffers: compute "
    "buffers of all graphs that a scheme keeps."
)
_PROMPT_NOTES = (
    "Loss: the median, prompt by prompt. Heads and floor are losses computed from multiply-adds, by the shapes in the "
    "GGUF. Heads: the head tensors that each row of a prompt needs (eh_proj, K, V, norms), relative to the trunk's "
    "layers; of routed experts, the share that is used. Floor: includes the trunk's last feed forward, which heads "
    "need for all rows; without heads llama.cpp computes it only for the last row in some architectures (glm4moe), "
    "for all rows in others (step35)."
)


def report(results: dict[str, Any], options: Options) -> str:
    """All tables, with provenance and notes."""
    parts = [
        fill(
            f"{results['machine']}. {results['library']}. Medians of {options.n_repeat} x {options.n_rounds} rounds, "
            "greedy, English prose."
        )
    ]
    for name, text in results["models"].items():
        rows = [row for row in results["rounds"] if row["model"] == name]
        parts += [f"## {name}", fill(text), *_rounds(rows)]
    parts += [fill(_NOTES), "## Prompts", markdown(_PROMPTS, results["prompts"]), fill(_PROMPT_NOTES)]
    return "\n\n".join(parts)


def _rounds(rows: Table) -> list[str]:
    rows = [{**row, "compute_mib": row["compute_bytes"] / 2**20} for row in rows]
    astray = [
        f"K = {row['k']}, {row['scheme']}: {row['n_astray']} rounds accepted other drafts than scripted"
        for row in rows
        if row["n_astray"]
    ]
    return [markdown(_TIMES, rows), markdown(_WORK, rows), *astray]
