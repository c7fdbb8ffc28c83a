"""Rounds on a Vulkan device: what they compute, save, and leave to the host.

Mesa's lavapipe, Vulkan on a CPU, is one, which llama.cpp uses only if it is named, and which compiles for minutes:
`GGML_VK_VISIBLE_DEVICES=0 GALLIVM_PERF=nopt pytest -m slow --timeout 1800 tests/test_vulkan.py`. Not Mesa 22.3: see
docs/limits.md. `GGML_VK_DISABLE_F16=1` takes kernels that sum in F32, which are held to a smaller difference.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import families
from log_level import logged
from native_program import SOURCES, compile_native
from pymtp import Chunk, Model, ModelParams
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Session
from pymtp.gguf.facts import model_facts
from pymtp.loader import Weights
from pymtp.placement.devices import devices
from random_gguf import blocks, hybrids, nemotron
from rpc_servers import rpc_servers
from test_isolation import FAMILIES, N_CTX, PUBLIC, K, rounds, session, text_of

DEVICE = next((device.name for device in devices() if device.backend == "Vulkan"), "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not DEVICE, reason="no Vulkan device: make it with -DGGML_VULKAN=ON, see the file's first lines"
    ),
]

ON_DEVICE = ModelParams(device=[DEVICE])
PROMPTS = [PUBLIC[:6], PUBLIC[6:]]
TEXT = text_of("11", N_CTX)
"""In which no family has two experts, of which one is taken, that are nearly as good: products in F16 change scores by
0.0003, and a row that takes the other expert changes logits by 3 to 50 %. Other texts have such a row in some family.
"""
TIE = 0.002 if "GGML_VK_DISABLE_F16" in os.environ else 0.01
"""Of the largest logit: how far those of the same row may be from each other."""


@pytest.fixture(scope="module", params=["plain", "sliding window", "hybrid", "own cache"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def on_host(path: Path) -> Iterator[Weights]:
    loaded = Weights(model_facts(path), ModelParams(device=[]), with_heads=True)
    yield loaded
    loaded.close()


def same_but_for_rounding(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        largest = np.abs(other[np.isfinite(other)]).max()
        np.testing.assert_allclose(one, other, atol=TIE * largest, rtol=0)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The endpoint of a server that lends the device."""
    with rpc_servers(1, device=DEVICE) as (started,):
        yield started.endpoint


def test_products_of_few_rows(tmp_path: Path) -> None:
    """Of integers: on a CPU they are never chosen, so the program asks for them."""
    program = tmp_path / "test-vulkan"
    compile_native(SOURCES / "test-vulkan.cpp", program)
    done = subprocess.run([program], stdout=subprocess.PIPE, text=True)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", families.FAMILIES)
def test_sequences_compute_what_the_host_computes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of one and of two passes, rounds of which drafts are taken back, and a sequence that is saved."""
    compare_with_the_host(name, ON_DEVICE, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["glm4moe", "step35", "qwen35", "glm5-next", "gemma4"])
def test_a_server_computes_what_the_host_computes(
    name: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_with_the_host(name, ModelParams(device=["RPC0"], rpc=[server]), tmp_path, monkeypatch)


def compare_with_the_host(name: str, params: ModelParams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # an index that leaves positions out takes others where two are nearly as good, as on the host with keys in BF16
    monkeypatch.setitem(blocks.INDEXER, "attention.indexer.top_k", N_CTX)
    family = families.FAMILIES[name]
    path = family.write(tmp_path / "tiny.gguf")
    assistant = family.write_assistant(tmp_path / "assistant.gguf") if family.write_assistant else None
    found = []
    for each in (params, ModelParams(device=[])):
        with closing(Weights(model_facts(path, assistant), each, with_heads=True)) as weights:
            found.append(of_sequences(weights, TEXT))
    same_but_for_rounding(*found)


def of_sequences(weights: Weights, text: list[int]) -> list[np.ndarray]:
    """All logits of trunk and heads. Drafts are the text's next tokens, so that no tie changes what comes after it."""
    params = ContextParams(n_ctx=N_CTX, n_ubatch=32, n_threads=1, n_seq_max=2)
    made = Session(weights.model, params, n_draft_max=K, assistant=weights.assistant, model_id="m")
    found, ends = [], [0, 0]

    def decode(*chunks: Chunk) -> None:
        made.decode([*chunks])
        found.append(made.logits.copy())

    def one_round(sequence: int, n_kept: int) -> None:
        end = ends[sequence]
        for step in range(K):
            made.draft(step, K, [Chunk([text[end + step]], end + step, sequence)])
            found.append(made.draft_logits.copy())
        decode(Chunk(text[end : end + 1 + K], end, sequence, logits="all", feed=True))
        ends[sequence] += n_kept
        made.truncate(ends[sequence], sequence=sequence)

    decode(Chunk(text[:45], 0, 0, feed=True))
    ends[:] = [45, 9]
    one_round(0, 1)
    decode(Chunk(text[46:47], 46, 0, feed=True), Chunk(text[:9], 0, 1, feed=True))
    ends[0] = 47
    for sequence, n_kept in ((1, 2), (0, 3), (1, 1)):
        one_round(sequence, n_kept)
    made.restore_sequence(1, made.save_sequence(0))
    ends[1] = ends[0]
    one_round(1, 1)
    return found


@pytest.mark.parametrize("is_remote", [False, True], ids=["here", "remote"])
def test_texts_are_the_plain_ones_but_for_ties(is_remote: bool, server: str, path: Path, on_host: Weights) -> None:
    """With drafts, alone and with another sequence in the passes."""
    options = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    place: dict[str, list[str]] = {"device": ["RPC0"], "rpc": [server]} if is_remote else {"device": [DEVICE]}
    with Model(path, n_ctx=64, n_threads=1, n_seq_max=2, draft_max=2, **place) as model:  # type: ignore[arg-type]
        for draft_max in (0, 2):
            both = [model.generate(prompt, draft_max=draft_max, **options) for prompt in PROMPTS]  # type: ignore[arg-type]
            for shared in both:
                list(shared)
            for prompt, shared in zip(PROMPTS, both, strict=True):
                plain, alone = (model.generate(prompt, draft_max=n, **options) for n in (0, draft_max))  # type: ignore[arg-type]
                assert len(list(plain)) and len(list(alone))
                for tokens in (alone.tokens, shared.tokens):
                    assert same_but_for_ties(on_host, prompt, tokens, plain.tokens)


def same_but_for_ties(on_host: Weights, prompt: list[int], tokens: list[int], plain: list[int]) -> bool:
    """Whether the first tokens that differ, if any do, have nearly the same logit."""
    at = next((i for i, pair in enumerate(zip(tokens, plain, strict=True)) if len(set(pair)) > 1), None)
    if at is None:
        return True
    made = session(on_host)
    made.decode([Chunk([*prompt, *plain[:at]], 0)])
    return bool(abs(made.logits[0][tokens[at]] - made.logits[0][plain[at]]) < TIE * np.abs(made.logits).max())


@pytest.fixture
def published_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index and recurrent states as large as models have them: for smaller ones the device has no kernels."""
    monkeypatch.setattr(blocks, "INDEX_HEAD", 128)
    monkeypatch.setattr(blocks, "INDEX_HEADS", 32)
    monkeypatch.setitem(blocks.INDEXER, "attention.indexer.key_length", 128)
    monkeypatch.setitem(blocks.INDEXER, "attention.indexer.head_count", 32)
    for module in (hybrids, nemotron):
        monkeypatch.setattr(module, "STATE", 128)
    monkeypatch.setitem(hybrids.MAMBA, "ssm.state_size", 128)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_rounds_need_nothing_of_the_host(
    name: str, published_sizes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Graphs of trunk and heads are one split each, and the scheduler copies no inputs: they come side by side."""
    family = families.FAMILIES[name]
    path = family.write(tmp_path / "tiny.gguf")
    assistant = family.write_assistant(tmp_path / "assistant.gguf") if family.write_assistant else None
    params = ContextParams(n_ctx=N_CTX, n_ubatch=32, n_threads=1, n_seq_max=2)
    monkeypatch.setenv("GGML_SCHED_DEBUG", "1")
    with logged("debug"), closing(Weights(model_facts(path, assistant), ON_DEVICE, with_heads=True)) as weights:
        made = Session(weights.model, params, n_draft_max=K, assistant=weights.assistant, model_id="m")
        capfd.readouterr()
        rounds(made, TEXT[:30], 0)
    splits = re.findall(r"## SPLIT #(\d+): (\w+) # (\d+) inputs", capfd.readouterr().err)
    begins = [i for i, split in enumerate(splits) if split[0] == "0"]
    assert len(begins) >= 3
    of_rounds = splits[begins[1] :]
    if family.embeds_layers:  # these stay on the host with other devices, too
        assert [place for _, place, _ in of_rounds] == [DEVICE, "CPU", DEVICE]
    else:
        assert set(of_rounds) == {("0", DEVICE, "0")}
