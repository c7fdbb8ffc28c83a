"""Tokens that only pad a vocabulary, on a tiny model in which they are always the most likely ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from pymtp import Chunk, Model, SamplingParams
from pymtp.engine.session import Session
from pymtp.errors import PymtpError
from random_gguf import N_VOCAB, write_glm4moe

PADDING = frozenset(range(N_VOCAB - 8, N_VOCAB))
PROMPT = [5, 9, 200, 31, 7, 7, 9]


def make_padding(path: Path) -> Path:
    """Make the last tokens padding, one of which has the highest logit whatever the hidden state is."""
    reader = gguf.GGUFReader(path, "r+")
    types = reader.fields["tokenizer.ggml.token_type"]
    names = reader.fields["tokenizer.ggml.tokens"]
    outputs = [t for t in reader.tensors if t.name == "output.weight" or t.name.endswith("shared_head_head.weight")]
    assert len(outputs) == 2
    for i, token in enumerate(sorted(PADDING)):
        types.parts[types.data[token]][0] = gguf.TokenType.UNUSED
        names.parts[names.data[token]][:] = np.frombuffer(f"[PAD{i}]".encode(), np.uint8)
        for output in outputs:
            output.data[token] = 0
            output.data[token, i // 2] = 1000 * (-1) ** i
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_padding(write_glm4moe(tmp_path_factory.mktemp("padding") / "tiny.gguf"))


@pytest.fixture(scope="module", params=["all", N_VOCAB - 4])
def model(request: pytest.FixtureRequest, path: Path) -> Iterator[Model]:
    """With drafts out of all tokens, or of the first ones, a part of the padding among them."""
    with Model(path, n_ctx=256, n_threads=1, draft_max=3, draft_vocab=request.param) as model:
        yield model


class Watched:
    """A session that notes which tokens it is asked to verify, and whether padding was the most likely token."""

    def __init__(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.verified: set[int] = set()
        self.was_likely: list[bool] = []
        decode = session.decode

        def watch(chunks: list[Chunk], meanwhile: Callable[[], object]) -> None:
            self.verified |= {token for chunk in chunks if chunk.position >= len(PROMPT) for token in chunk.tokens}
            decode(chunks, meanwhile)
            self.was_likely += [int(row.argmax()) in PADDING for row in session.logits]

        monkeypatch.setattr(session, "decode", watch)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 1.5, "min_p": 0, "top_p": 1, "top_k": 0},
        {"temperature": 0, "repeat_penalty": 1.1},
        {"temperature": 1, "typical_p": 0.9, "xtc_probability": 0.5},
        {"temperature": 1, "mirostat": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("draft_pick", ["greedy", "sample", "auto"])
def test_padding_is_neither_drafted_nor_emitted(
    model: Model, monkeypatch: pytest.MonkeyPatch, options: dict[str, float], draft_pick: str
) -> None:
    watched = Watched(model.session, monkeypatch)
    sampling = SamplingParams(seed=1, **options)  # type: ignore[arg-type]
    generation = model.generate(PROMPT, sampling=sampling, max_tokens=40, ignore_eos=True, draft_pick=draft_pick)
    list(generation)
    assert all(watched.was_likely)
    assert len(watched.was_likely) >= 40
    assert (generation.stats.drafted > 40) == (not sampling.mirostat)
    assert not (watched.verified | set(generation.tokens)) & PADDING


def test_padding_cannot_be_listed_in_a_draft_vocab(path: Path) -> None:
    with pytest.raises(PymtpError, match="token 505 is not in the vocabulary of 504"):
        Model(path, n_ctx=64, draft_vocab=[1, 505])
