"""Records what drafts of a model's heads are worth at every token of real texts: for bench/replay.py.

    python bench/traces.py OUT.jsonl --model M [--prompts PROMPTS.jsonl ...] [--answers A.jsonl ...] [-n 96] [-t 2]

Prompts are answered by the model itself, greedily; the text of answers is given. At each token the heads draft DEPTH
tokens, as they would in a round that begins there. A line of the file is one text: the tokens of its prompt and answer,
and for each token of the answer the drafts made before it and their confidences. What lookup would have drafted follows
from the tokens.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pymtp import Chunk, Model
from pymtp.benchmark.prompts import read_texts, tokenized

DEPTH = 16


class Trace(NamedTuple):
    """A text, and what the heads drafted along it."""

    category: str
    prompt: list[int]
    answer: list[int]
    drafts: list[list[int]]
    """For each token of the answer but the first: the drafts made before it."""
    confidences: list[list[float]]

    def n_right(self, i: int) -> int:
        """Of the drafts before the answer's token `i`, those that are right, up to the first that is not."""
        n = 0
        for draft, token in zip(self.drafts[i - 1], self.answer[i:], strict=False):
            if draft != token:
                break
            n += 1
        return n


def read_traces(path: Path) -> list[Trace]:
    """What `main` has written."""
    return [Trace(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def record(model: Model, category: str, prompt: Sequence[int], answer: Sequence[int]) -> Trace:
    """Draft before each token of the answer but the first."""
    session, drafts, confidences = model.session, [], []
    n_prompt, text = len(prompt), [*prompt, *answer]
    session.truncate(0)
    for begin in range(0, n_prompt, session.n_ubatch):
        session.decode([Chunk(text[begin : min(begin + session.n_ubatch, n_prompt)], begin, 0, "none", feed=True)])
    for position in range(n_prompt, len(text) - 1):
        tokens, probs = session.draft_tokens([Chunk([text[position]], position, 0)], DEPTH, probs=True)
        drafts.append(tokens[0])
        confidences.append([round(prob, 3) for prob in probs[0]])
        session.decode([Chunk([text[position]], position, 0, "none", feed=True, n_heads=session.n_heads)])
    return Trace(category, list(prompt), list(answer), drafts, confidences)


def texts(model: Model, options: argparse.Namespace) -> Iterator[tuple[str, list[int], list[int]]]:
    """Categories, prompts and answers."""
    for path in options.prompts:
        for each in read_texts(path):
            prompt = tokenized(each, model.vocabulary).tokens
            answer = model.generate(prompt, temperature=0, max_tokens=options.n, ignore_eos=True, draft_max=0)
            list(answer)
            yield each.category, prompt, answer.tokens
    for path in options.answers:
        for line in path.read_text("utf-8").splitlines():
            pair = json.loads(line)
            yield pair["category"], model.tokenize(pair["prompt"]), model.tokenize(pair["answer"], is_start=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, help="default: the embedded model")
    parser.add_argument("--prompts", type=Path, nargs="*", default=[])
    parser.add_argument("--answers", type=Path, nargs="*", default=[])
    parser.add_argument("-n", type=int, default=96, help="tokens that a prompt is answered with (default: 96)")
    parser.add_argument("-t", type=int, help="threads")
    options = parser.parse_args()
    with (
        Model(options.model, draft="mtp", draft_max=DEPTH, n_ctx=2048, n_threads=options.t) as model,
        options.out.open("w") as out,
    ):
        pairs = list(texts(model, options))
        for pair in pairs:
            trace = model.call(lambda pair=pair: record(model, *pair))  # type: ignore[misc]
            out.write(json.dumps(trace._asdict()) + "\n")


if __name__ == "__main__":
    main()
