"""What a request leaves behind never reaches another: its K/V, recurrent states, hidden rows, drafts and logits.

A place is filled with one of two secrets, which are equally long, and freed. All that is computed afterwards has to be
bit for bit the same after either, in every kind of memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from machine import HAS_GPU
from pymtp import Model
from pymtp.binding.library import abi_id
from pymtp.engine import snapshot
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk, Session
from pymtp.errors import StateError
from pymtp.gguf.facts import model_facts
from pymtp.gguf.header import read_header
from pymtp.loader import Weights
from pymtp.loading.params import ModelParams
from random_gguf import (
    N_VOCAB,
    write_bailingmoe3,
    write_deepseek3,
    write_deepseek4,
    write_glm4moe,
    write_glm5_next,
    write_glm_dsa,
    write_mimo2,
    write_nemotron_h_moe,
    write_qwen3next,
    write_qwen4exp_picking,
    write_qwen35,
    write_step35,
)

K = 2
N_CTX = 64
FAMILIES: dict[str, Callable[[Path], Path]] = {
    "plain": write_glm4moe,
    "latent": write_deepseek3,
    "compressed": write_deepseek4,
    "sliding window": write_mimo2,
    "sliding window, 3 heads": write_step35,
    "own cache": write_glm_dsa,
    "hybrid, own cache": write_glm5_next,
    "hybrid": write_qwen35,
    "hybrid, Mamba-2": write_nemotron_h_moe,
    "hybrid, linear attention": write_bailingmoe3,
    "hybrid, Qwen3-Next": write_qwen3next,
    "hybrid, an index": write_qwen4exp_picking,
}


def text_of(name: str, n: int) -> list[int]:
    rng = random.Random(name)
    return [rng.randrange(N_VOCAB) for _ in range(n)]


SECRETS = [text_of(name, N_CTX - 12) for name in ("a", "b")]
PUBLIC = text_of("public", 9)


@pytest.fixture(scope="module", params=FAMILIES)
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weights]:
    path = FAMILIES[request.param](tmp_path_factory.mktemp("models") / "tiny.gguf")
    loaded = Weights(model_facts(path), ModelParams(), with_heads=True)
    yield loaded
    loaded.close()


def session(weights: Weights, **params: object) -> Session:
    context = ContextParams(n_ctx=N_CTX, n_ubatch=32, n_threads=1, n_seq_max=2, **params)  # type: ignore[arg-type]
    return Session(weights.model, context, n_draft_max=K, model_id="m")


def rounds(made: Session, tokens: list[int], sequence: int) -> list[np.ndarray]:
    """A prompt, two rounds of drafts of which one draft stays, and all logits on the way."""
    made.decode([Chunk(tokens, 0, sequence, feed=True)])
    found, end, last = [made.logits.copy()], len(tokens), 3
    for _ in range(2):
        drafts, probs = made.draft_tokens([Chunk([last], end, sequence)], K, probs=True)
        made.decode([Chunk([last, *drafts[0]], end, sequence, logits="all", feed=True)])
        found += [np.array(drafts), np.array(probs), made.logits.copy()]
        last, end = drafts[0][0] if drafts[0] else last, end + 1 + bool(drafts[0])
        made.truncate(end, sequence=sequence)
    return found


def left_behind(made: Session, secret: list[int], free: Callable[[Session], None]) -> list[np.ndarray]:
    """What is computed in the places of two sequences that held a secret: in one after the other, and in both."""
    for sequence in (0, 1):
        rounds(made, secret, sequence)
    free(made)
    return [*rounds(made, PUBLIC, 1), *rounds(made, PUBLIC[::-1], 0), *rounds_of_both(made)]


def rounds_of_both(made: Session) -> list[np.ndarray]:
    _truncate(made)
    made.decode([Chunk(PUBLIC, 0, 0, feed=True), Chunk(PUBLIC[:5], 0, 1, feed=True)])
    return [made.logits.copy()]


def _truncate(made: Session) -> None:
    for sequence in (0, 1):
        made.truncate(0, sequence=sequence)


def _restore_nothing(made: Session) -> None:
    """A state without a sequence in the place of what is there."""
    used = made.save()
    _truncate(made)
    empty = made.save()
    made.restore(used)
    made.restore(empty)


def _copy_over(made: Session) -> None:
    """The place is freed, takes a copy of a sequence without a secret, and is freed again."""
    _truncate(made)
    made.decode([Chunk(PUBLIC, 0, 0, feed=True)])
    made.copy(0, 1)
    _truncate(made)


@pytest.mark.parametrize("free", [_truncate, _restore_nothing, _copy_over], ids=["truncated", "restored", "copied"])
@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_a_place_computes_the_same_after_either_secret(
    weights: Weights, flash_attn: str, free: Callable[[Session], None]
) -> None:
    one, other = (left_behind(session(weights, flash_attn=flash_attn), secret, free) for secret in SECRETS)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_secrets_would_be_seen(weights: Weights) -> None:
    one, other = (rounds(session(weights), secret, 0) for secret in SECRETS)
    assert not np.array_equal(one[0], other[0])


@pytest.mark.skipif(HAS_GPU, reason="attention on GPUs reads places that are masked")
def test_a_place_whose_values_are_no_numbers_computes_as_an_unused_one(weights: Weights, tmp_path: Path) -> None:
    path = tmp_path / "poison.gguf"
    path.write_bytes(weights.info.path.read_bytes())
    poison = _without_numbers(path)
    loaded = Weights(model_facts(path), ModelParams(), with_heads=True)
    made = session(loaded, flash_attn="on")
    expected = rounds(made, PUBLIC, 0)
    _truncate(made)
    for sequence in (0, 1):
        made.decode([Chunk([poison] * len(SECRETS[0]), 0, sequence, feed=True)])
        assert np.isnan(made.logits).any()
    _truncate(made)
    for sequence in (0, 1):
        for a, b in zip(rounds(made, PUBLIC, sequence), expected, strict=True):
            np.testing.assert_array_equal(a, b)


def _without_numbers(path: Path) -> int:
    """Write NaN into the embedding of a token that PUBLIC does not have; return the token."""
    token = next(token for token in range(N_VOCAB) if token not in PUBLIC and token != 3)
    table = next(tensor for tensor in read_header(path).tensors if tensor.name == "token_embd.weight")
    data = bytearray(path.read_bytes())
    at = table.offset + token * table.shape[0] * 4
    data[at : at + 4 * table.shape[0]] = b"\xff" * (4 * table.shape[0])
    path.write_bytes(data)
    return token


def poisoned(weights: Weights, at: float) -> bytes:
    """A saved sequence that is signed, and holds bytes of NaN at a part of its length."""
    made = session(weights)
    made.decode([Chunk(SECRETS[0], 0, feed=True)])
    payload = bytearray(made.save_sequence(0).partition(b"\n")[2])
    i = int(at * len(payload)) // 4 * 4
    payload[i : i + 64] = b"\xff" * 64
    return snapshot.pack(bytes(payload), engine=abi_id(), model="m")


def test_a_saved_sequence_with_values_that_are_no_numbers_changes_nothing(weights: Weights) -> None:
    made = session(weights, flash_attn="off")
    expected = rounds(made, PUBLIC, 0)
    _truncate(made)
    n_refused = 0
    for tenth in range(1, 10):
        try:
            made.restore_sequence(0, poisoned(weights, tenth / 10))
        except StateError:
            n_refused += 1
        _truncate(made)
        for a, b in zip(rounds(made, PUBLIC, 0), expected, strict=True):
            np.testing.assert_array_equal(a, b)
        _truncate(made)
    assert n_refused > 6


@pytest.mark.parametrize("draft", ["mtp", "lookup"])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "accept": "rejection"}], ids=["greedy", "sampled"])
def test_texts_do_not_depend_on_what_was_asked_before(tmp_path: Path, draft: str, options: dict[str, object]) -> None:
    path = write_glm4moe(tmp_path / "tiny.gguf")
    made = []
    for secret in SECRETS:
        with Model(path, n_ctx=N_CTX, n_threads=1, n_seq_max=2, draft=draft, draft_max=K) as model:
            for _ in model.generate(secret, max_tokens=8, seed=1, ignore_eos=True, **options):  # type: ignore[arg-type]
                pass
            answer = model.generate(PUBLIC, max_tokens=12, seed=2, ignore_eos=True, **options)  # type: ignore[arg-type]
            made.append(("".join(answer), answer.stats.drafted, answer.stats.accepted))
    assert made[0] == made[1]


@pytest.mark.parametrize("draft_max", [0, K])
def test_a_grammar_that_no_token_continues_ends_its_own_text_alone(tmp_path: Path, draft_max: int) -> None:
    options = {"max_tokens": 20, "temperature": 0, "draft_max": draft_max}
    with Model(write_glm4moe(tmp_path / "tiny.gguf"), n_ctx=N_CTX, n_threads=1, n_seq_max=3, draft_max=K) as model:
        alone = model.generate(PUBLIC, ignore_eos=True, **options)  # type: ignore[arg-type]
        expected = "".join(alone)
        other = model.generate(PUBLIC, ignore_eos=True, **options)  # type: ignore[arg-type]
        dead_end = model.generate(PUBLIC, grammar='root ::= "\\t" "a"', **options)  # type: ignore[arg-type]
        assert "".join(dead_end) == "\t" and dead_end.finish_reason == "blocked"
        assert "".join(other) == expected and other.tokens == alone.tokens
        assert model.slots.n_cells_used() == 0
        dead_end = model.generate(PUBLIC, grammar='root ::= "\\t" "a"', **options)  # type: ignore[arg-type]
        assert "".join(dead_end) == "\t" and dead_end.finish_reason == "blocked"  # with nothing else to wait for
        assert "".join(model.generate(PUBLIC, ignore_eos=True, **options)) == expected  # type: ignore[arg-type]
