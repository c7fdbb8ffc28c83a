"""Makes the rows of the tables: schemes compared on one model, round by round and on prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from time import perf_counter

from spread import Spread

from .measure import Rounds, walk
from .prompt_cost import prompt_cost
from .schemes import Fused, Plain, Scheme, StepByStep
from .scripted import write_script
from .second_context import TwoContexts
from .subject import N_PROMPT, Options, Subject
from .table import Table


def compare_rounds(model: Subject, options: Options, lengths: tuple[int, ...]) -> Table:
    """A row for each scheme, with rounds of `lengths` drafts in turn."""
    schemes = _schemes(model, options, max(lengths))
    drafting, plain = (
        write_script(model.text, N_PROMPT, cycle, options.n_scripted, model.n_vocab) for cycle in (lengths, (0,))
    )
    scripts = [plain if type(scheme) is Plain else drafting for scheme in schemes]
    walks = [walk(schemes, scripts, model.text[:N_PROMPT]) for _ in range(options.n_repeat)]
    by_scheme = {scheme.name: [rounds[i] for rounds in walks] for i, scheme in enumerate(schemes)}
    compute_bytes = {scheme.name: scheme.close() for scheme in schemes}

    reference = by_scheme.get(TwoContexts.name)
    n_tokens = _mean_tokens(lengths)
    return [
        {
            "model": model.path.name,
            "k": ",".join(map(str, lengths)),
            "scheme": name,
            **_times(found, 1 if name == Plain.name else n_tokens, reference),
            **asdict(found[-1].work),
            "compute_bytes": compute_bytes[name],
            "n_astray": sum(rounds.n_astray for rounds in found),
            "drafts_agree": _agreement(found, reference) if reference and name != Plain.name else None,
        }
        for name, found in by_scheme.items()
    ]


def _schemes(model: Subject, options: Options, n_draft_max: int) -> list[Scheme]:
    schemes: list[Scheme] = [Plain(model.handle, options.params)]
    # llama.cpp runs each of several heads only once
    if model.n_heads == 1 or n_draft_max <= model.n_heads:
        schemes.append(TwoContexts(model.handle, options.params, n_draft_max))
    return [*schemes, *(kind(model.handle, options.params, n_draft_max) for kind in (StepByStep, Fused))]


def _times(found: Sequence[Rounds], n_tokens: float, reference: Sequence[Rounds] | None) -> dict[str, float | None]:
    median, iqr = Spread.of([ms for rounds in found for ms in rounds.ms])
    return {
        "ms_round": median,
        "iqr_ms": iqr,
        "ms_token": median / n_tokens,
        "of_two_contexts": Spread.of(_ratios(found, reference)).median if reference else None,
        "python_ms": Spread.of([ms for rounds in found for ms in rounds.python_ms]).median,
    }


def _ratios(found: Sequence[Rounds], reference: Sequence[Rounds]) -> list[float]:
    """Round by round: both ran right after each other, on a machine in the same state."""
    return [a / b for one, other in zip(found, reference, strict=True) for a, b in zip(one.ms, other.ms, strict=True)]


def _mean_tokens(lengths: tuple[int, ...]) -> float:
    """Mean tokens per round, over a whole cycle of the script."""
    return sum(1 + n / 2 for n in lengths) / len(lengths)


def _agreement(found: Sequence[Rounds], reference: Sequence[Rounds]) -> float:
    """The share of rounds in which both drafted the same tokens."""
    same = [a == b for a, b in zip(found[-1].drafts, reference[-1].drafts, strict=True)]
    return sum(same) / len(same)


def compare_prompts(model: Subject, options: Options) -> Table:
    """A row for prompts without heads, and one for each way to feed the heads."""
    n_draft_max = min(3, model.n_heads) if model.n_heads > 1 else 3
    schemes: dict[str, Scheme] = {
        "without": Plain(model.handle, options.params),
        "pymtp": Fused(model.handle, options.params, n_draft_max),
        TwoContexts.name: TwoContexts(model.handle, options.params, n_draft_max),
    }
    tok_s = _time_prompts(list(schemes.values()), model.prompt(options.n_prompt), 4 * options.n_repeat)
    for scheme in schemes.values():
        scheme.close()

    spreads = [Spread.of(values) for values in tok_s]
    # in turn, as for rounds
    ratios_to_plain = [[a / b for a, b in zip(values, tok_s[0], strict=True)] for values in tok_s]
    cost = prompt_cost(model.path, min(model.n_heads, n_draft_max))
    return [
        {
            "model": model.path.name,
            "heads": name,
            "n_tokens": options.n_prompt,
            "tok_s": spread.median,
            "iqr_tok_s": spread.iqr,
            "loss_percent": 100 * (1 - Spread.of(ratios).median) if name != "without" else None,
            "heads_percent": 100 * cost.heads_loss if name != "without" else None,
            "floor_percent": 100 * cost.floor_loss if name != "without" else None,
        }
        for name, spread, ratios in zip(schemes, spreads, ratios_to_plain, strict=True)
    ]


def _time_prompts(schemes: Sequence[Scheme], prompt: list[int], n_times: int) -> list[list[float]]:
    """Tokens per second of each scheme, `n_times` in turn."""
    tok_s: list[list[float]] = [[] for _ in schemes]
    for scheme in schemes:
        scheme.begin(prompt)  # builds the graphs, touches the pages
    for i in range(n_times):
        for j in range(len(schemes)):
            k = (i + j) % len(schemes)
            begin = perf_counter()
            schemes[k].begin(prompt)
            tok_s[k].append(len(prompt) / (perf_counter() - begin))
    return tok_s
