"""Reports on a generation: a block of lines for people, one JSON object for programs.

Owns both layouts. Knows the names of the figures, not how they are measured.
"""

import json
from collections.abc import Sequence

import msgspec

import pymtp
from pymtp import Generation, Model, Stats

from .text import block

_ENOUGH_ROUNDS = 16
"""Rounds whose speed says something: that of fewer depends on what else the machine does."""
_ENDED = {
    "eog": "eog, by the model",
    "length": "length (-n)",
    "context": "context full (-c)",
    "stop": "stop text (--stop)",
    "blocked": "no token is allowed (--grammar, --logit-bias)",
}


def ended_text(finish_reason: str | None, *, stopped: bool) -> str:
    """Why a text ended, in words. `stopped`: by Ctrl-C."""
    return "interrupted (Ctrl-C)" if stopped or finish_reason is None else _ENDED[finish_reason]


def stats_block(stats: Stats, acceptance: str, plain_tok_s: float | None, more: Sequence[tuple[str, str]] = ()) -> str:
    """Return the lines that `run` prints on stderr after the text.

    `acceptance`: how drafts were verified; `plain_tok_s`: the speed of plain decoding, if it is known; `more`: rows
    to begin with.
    """
    rows = [
        *more,
        ("prompt", _speed(stats.prompt_tokens, stats.prompt_tok_s)),
        ("generation", _speed(stats.generated_tokens, stats.generation_tok_s)),
    ]
    if not stats.drafted:
        return block([*rows, ("drafts", "none")])
    positions = [f"{rate:.0%}" for rate in stats.acceptance_per_position]
    rows += [
        ("drafts", f"{stats.accepted} of {stats.drafted} accepted ({stats.acceptance_rate:.0%}), by {acceptance}"),
        ("by position", ", ".join(positions) if len(positions) > 1 else ""),
        ("rounds", f"{stats.rounds}, of {_number(stats.mean_acceptance_length, '.2f')} tokens each on average"),
        ("speed-up", speedup_text(stats, plain_tok_s)),
    ]
    return block(rows)


def speedup_text(stats: Stats, plain_tok_s: float | None) -> str:
    """How much faster drafting made a text than plain decoding, of `plain_tok_s` tokens per second if that is known."""
    if not plain_tok_s or not stats.generation_tok_s:
        return "not known, as no round was plain; pymtp bench compares"
    plain = f"plain decoding makes about {plain_tok_s:.0f} tok/s here"
    if stats.rounds < _ENOUGH_ROUNDS:
        return f"not known, as the text is too short; {plain}"
    gain = stats.generation_tok_s / plain_tok_s
    verdict = "" if gain > 1.03 else " (a loss)" if gain < 0.97 else " (no gain)"
    return f"{gain:.2f}x{verdict}; {plain}"


def json_report(generation: Generation, model: Model, *, stopped: bool) -> str:
    """Return `run --json`'s object on one line. `stopped`: Ctrl-C ended the generation."""
    message = generation.message
    return json.dumps(
        {
            "text": message.content,
            "reasoning": message.reasoning or None,
            "tokens": list(generation.tokens),
            **generation.stats.as_dict(),
            "finish_reason": "interrupt" if stopped else generation.finish_reason,
            "draft_max": model.draft_max,
            "accept": generation.acceptance,
            "model": str(model.info.path),
            "pin": pymtp.version_text(),
            # JSON has no infinity: it becomes null
            **({"logprobs": json.loads(msgspec.json.encode(generation.logprobs))} if generation.logprobs else {}),
        },
        ensure_ascii=False,
    )


def _speed(tokens: int, tok_s: float | None) -> str:
    return f"{tokens} token{'s' * (tokens != 1)}, {_number(tok_s, '.1f')} tok/s"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
