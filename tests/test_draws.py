"""Whole engine draws against exact probabilities: each drafter and way of acceptance, in batches and alone.

The model's attention adds nothing, so that what follows a token depends on that token alone, and six tokens have all
the probability: 36 numbers, which a plain pass over single tokens gives. Drafts, verifying, going back, samplers and
scheduler are the real ones. The counts of three tokens in a row are held against them (chi-square, p = 0.0001), so
that a bias that depends on the token before shows as well. All seeds are fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from pymtp import Chunk, Model, Session
from pymtp.drafting.interface import DrafterTraits, DraftOutcome, DraftRequest, Proposal
from pymtp.gguf.shards import read_shards
from pymtp.sampling.distribution import Distribution
from random_gguf import write_glm4moe

N = 6
"""Tokens that are drawn: 0 to N - 1."""
N_CTX, K = 128, 3
CHAIN: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
CHAIN |= {"logit_bias": dict.fromkeys(range(N), 60.0), "ignore_eos": True}
N_BATCH = 16


class Random:
    """A drafter of one's own, which draws from a table."""

    traits: ClassVar = DrafterTraits("random", allows_drawn=True)

    def __init__(self, session: Session) -> None:
        self._rng = np.random.default_rng(1)
        self._table = self._rng.dirichlet(np.ones(N), N)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._proposal(request) for request in requests]

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        pass

    def _proposal(self, request: DraftRequest) -> Proposal:
        last, drafts, distributions = request.history[-1], [], []
        for _ in range(request.n_draft):
            probs = self._table[last % N]
            last = int(self._rng.choice(N, p=probs)) if request.draws else int(probs.argmax())
            drafts.append(last)
            distributions.append(Distribution(np.arange(N, dtype=np.int32), probs))
        return Proposal(drafts, distributions if request.draws else ())


DRAFTERS: dict[str, Any] = {"heads": "mtp", "lookup": "lookup", "own": Random}
WAYS = {
    "match": {"accept": "match"},
    "block, drawn": {"accept": "rejection", "draft_pick": "sample"},
    "block, likely": {"accept": "rejection", "draft_pick": "greedy"},
    "token-wise, drawn": {"accept": "rejection-tokenwise", "draft_pick": "sample"},
    "token-wise, likely": {"accept": "rejection-tokenwise", "draft_pick": "greedy"},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose rows depend on their own token alone."""
    path = write_glm4moe(tmp_path_factory.mktemp("draws") / "tiny.gguf", n_layer=1)
    (shard,) = read_shards(path)
    with path.open("r+b") as file:
        for tensor in shard.tensors:
            if tensor.name.endswith("attn_output.weight"):
                file.seek(tensor.offset)
                file.write(bytes(tensor.size_bytes))
    return path


@pytest.fixture(scope="module")
def exact(path: Path) -> np.ndarray:
    """(N, N): the probability of each token after each."""
    with Model(path, n_ctx=64, n_threads=1, draft="none") as model:
        table = np.empty((N, N))
        for token in range(N):
            model.session.decode([Chunk([3, token], 0)])
            logits = model.session.logits[0].astype(np.float64)
            model.session.truncate(0)
            assert logits.max() - logits[:N].min() < 50  # the bias leaves others nothing
            table[token] = np.exp(logits[:N] - logits[:N].max())
    return table / table.sum(axis=1, keepdims=True)


Draw = Callable[..., tuple[np.ndarray, Any]]


@pytest.fixture
def draw(path: Path) -> Iterator[Draw]:
    """Draws at least `n` tokens; counts of three in a row, (N, N, N), and the statistics."""

    def draw(n: int, drafter: str, way: dict[str, Any], n_seq_max: int) -> tuple[np.ndarray, Any]:
        counts = np.zeros((N, N, N), np.int64)
        options: dict[str, Any] = {"draft": DRAFTERS[drafter], "draft_max": K, "kv_unified": False}
        with Model(path, n_ctx=N_CTX, n_threads=1, n_seq_max=n_seq_max, **options) as model:
            seed = 0
            while counts.sum() < n:
                made, n_tokens = [], min(N_CTX - 8, -(-n // n_seq_max))
                for _ in range(n_seq_max):
                    prompt = [seed % N, seed // N % N]
                    made.append((prompt, model.generate(prompt, max_tokens=n_tokens, seed=seed, **CHAIN, **way)))
                    seed += 1
                for prompt, generation in made:
                    list(generation)
                    text = np.array([*prompt, *generation.tokens])
                    np.add.at(counts, (text[:-2], text[1:-1], text[2:]), 1)
                stats = model.stats
        return counts, stats

    return draw


def is_as(counts: np.ndarray, exact: np.ndarray) -> bool:
    """Whether the third of three tokens is distributed as `exact` says, whatever the first was."""
    expected = counts.sum(axis=2, keepdims=True) * exact[None]
    often = expected >= 5
    statistic = ((counts - expected)[often] ** 2 / expected[often]).sum()
    n_free = int(often.sum() - (counts.sum(axis=2) > 0).sum())
    # Wilson and Hilferty: the p = 0.0001 quantile of chi-square
    return bool(statistic < n_free * (1 - 2 / (9 * n_free) + 3.719 * (2 / (9 * n_free)) ** 0.5) ** 3)


def cases(ways: Sequence[str]) -> list[Any]:
    """Of each drafter. What is looked up cannot be drawn."""
    pairs = [(drafter, way) for drafter in DRAFTERS for way in ways if drafter != "lookup" or "drawn" not in way]
    return [pytest.param(drafter, WAYS[way], id=f"{drafter}, {way}") for drafter, way in pairs]


def check(draw: Draw, exact: np.ndarray, n: int, drafter: str, way: dict[str, Any], where: str) -> None:
    counts, stats = draw(n, drafter, way, N_BATCH if where == "batch" else 1)
    assert counts.sum() >= n
    assert is_as(counts, exact)
    assert stats.drafted > 0 and 0 < stats.accepted < stats.drafted


@pytest.mark.parametrize("where", ["batch", "alone"])
@pytest.mark.parametrize(("drafter", "way"), cases(["match", "block, drawn", "token-wise, likely"]))
def test_some_draws_have_the_exact_probabilities(
    draw: Draw, exact: np.ndarray, drafter: str, way: dict[str, Any], where: str
) -> None:
    check(draw, exact, 1_000, drafter, way, where)


@pytest.mark.slow
def test_the_check_catches_recovered_tokens_drawn_from_the_target(
    draw: Draw, exact: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Distribution, "sample_residual", lambda target, source, weight, uniform: target.draw(uniform))
    assert not is_as(draw(8_000, "own", WAYS["token-wise, drawn"], N_BATCH)[0], exact)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "share"), [("batch", 0.8), ("alone", 0.2)], ids=["batch", "alone"])
@pytest.mark.parametrize(("drafter", "way"), cases(list(WAYS)))
def test_a_million_draws_have_the_exact_probabilities(
    draw: Draw, exact: np.ndarray, drafter: str, way: dict[str, Any], where: str, share: float
) -> None:
    """A million for each drafter and way of acceptance, shared among the ways to pick drafts, batches and alone."""
    n_picks = 1 if way["accept"] == "match" or drafter == "lookup" else 2
    check(draw, exact, round(1_000_000 * share / n_picks), drafter, way, where)
