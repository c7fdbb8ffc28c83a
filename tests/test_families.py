"""Every family against llama.cpp's own two-context scheme and against itself, on tiny random models.

Drafts are scripted: some right (what plain decoding emits next), then wrong, so that every number of accepted drafts
occurs. Logits of the trunk have to agree within 1e-5, those of heads within 1e-4.
"""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gguf
import llama_cpp
import numpy as np
import pytest

from families import FAMILIES, REFUSED, Family, one_of_each_kind
from pymtp.binding.arrays import Logits
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk, Session
from pymtp.errors import PymtpError
from pymtp.gguf.types import CACHE_TYPES
from random_gguf import N_VOCAB, blocks, write_glm4moe
from random_gguf.writer import Writer
from two_contexts import TwoContexts

PARAMS = ContextParams(n_ctx=512, n_ubatch=32, n_threads=1, flash_attn="off", type_k="f32", type_v="f32")
# as users run it
USUAL = ContextParams(n_ctx=512, n_threads=1)
K = 3
TRUNK = {"rtol": 0, "atol": 1e-5}
HEAD = {"rtol": 0, "atol": 1e-4}
# how many of a round's drafts are right
ROUNDS = [0, 1, 2, 3] * 12
# alike; test_trained_heads.py compares the heads of all architectures with NumPy
SLOW = {"exaone4", *(f"{name}, trained" for name in ("qwen2", "qwen3", "qwen3moe", "phi3", "glm4"))}
some_rounds = pytest.mark.parametrize("n_rounds", [8, pytest.param(len(ROUNDS), marks=pytest.mark.slow)])


class Tiny(NamedTuple):
    """A tiny model and a text."""

    family: Family
    model: object
    prompt: list[int]
    text: list[int]
    """The prompt and what follows it: random tokens, too."""
    outputs: list[Logits]
    """The output matrix of each head, (N_VOCAB, n_embd)."""
    assistant: object | None

    def session(self, params: ContextParams, **options: Any) -> Session:
        """A session that drafts."""
        return Session(self.model, params, n_draft_max=K, assistant=self.assistant, **options)

    def two_contexts(self, params: ContextParams, **options: Any) -> TwoContexts:
        """The reference."""
        return TwoContexts(self.model, params, self.family.n_heads, assistant=self.assistant, **options)


def load(path: Path, *, load_mtp: bool = True) -> object:
    """The model with its heads. The tolerances are those of the CPU's F32: no GPU, not even for large products."""
    params = llama_cpp.llama_model_default_params()
    params.load_mtp = load_mtp
    no_devices = (ctypes.c_void_p * 1)(None)
    params.devices = ctypes.addressof(no_devices)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model
    return model


def output_matrices(path: Path) -> list[Logits]:
    """The heads' own, else the trunk's, else the embedding; the assistant's, which is its embedding."""
    tensors = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}
    heads = sorted(name.split(".")[1] for name in tensors if name.endswith("nextn.eh_proj.weight"))
    shared = tensors.get("output.weight", tensors["token_embd.weight"])
    return [tensors.get(f"blk.{head}.nextn.shared_head_head.weight", shared) for head in heads] or [shared]


def plain_text(model: object, prompt: list[int], n_tokens: int, params: ContextParams = PARAMS) -> list[int]:
    """The prompt and its continuation by plain greedy decoding."""
    text = list(prompt)
    with Session(model, params) as session:
        session.decode([Chunk(prompt, 0)])
        while len(text) < len(prompt) + n_tokens:
            text.append(int(session.logits[-1].argmax()))
            session.decode([Chunk([text[-1]], len(text) - 1)])
    return text


def scripted(right: list[int], n_right: int, rng: random.Random) -> list[int]:
    """Drafts of which exactly the first `n_right` are right."""
    return right[:n_right] + [(token + rng.randrange(1, N_VOCAB)) % N_VOCAB for token in right[n_right:]]


def draft(session: Session, token: int, position: int, script: list[int], sequence: int = 0) -> Logits:
    """Draft step by step, continuing with the scripted tokens; the logits of all steps."""
    logits = []
    for step, row in enumerate([token, *script[:-1]]):
        session.draft(step, len(script), [Chunk([row], position + step, sequence)])
        logits.append(session.draft_logits[0].copy())
    return np.stack(logits)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in FAMILIES],
)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    family = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("models")
    path = family.write(folder / "tiny.gguf")
    model, assistant = load(path), None
    if family.write_assistant:
        path = family.write_assistant(folder / "assistant.gguf")
        assistant = load(path)
    # longer than an ubatch, and than a sliding window
    rng = random.Random(7)
    text = [rng.randrange(N_VOCAB) for _ in range(45 + 3 * len(ROUNDS))]
    yield Tiny(family, model, text[:45], text, output_matrices(path), assistant)
    for loaded in filter(None, (assistant, model)):
        llama_cpp.llama_model_free(loaded)


@some_rounds
def test_logits_equal_those_of_two_contexts(tiny: Tiny, n_rounds: int) -> None:
    compare_with_two_contexts(tiny, PARAMS, n_rounds)


def test_the_heads_keys_and_values_are_where_the_table_says(tiny: Tiny) -> None:
    with tiny.session(PARAMS) as session:
        assert session.mtp_memory == tiny.family.memory


@pytest.mark.parametrize("tiny", one_of_each_kind(FAMILIES), indirect=True)
def test_logits_of_a_prompt_in_one_large_pass_equal_those_of_two_contexts(tiny: Tiny) -> None:
    compare_with_two_contexts(tiny._replace(prompt=tiny.text[:170]), replace(PARAMS, n_ubatch=256), 4)


def compare_with_two_contexts(
    tiny: Tiny, params: ContextParams, n_rounds: int, mtp_context: Literal["target", "chained"] = "target"
) -> None:
    """A prompt, and scripted rounds after it, at most to the end of the text."""
    rng, text, n = random.Random(7), tiny.text, len(tiny.prompt) + 1
    reference = tiny.two_contexts(params, chained=mtp_context == "chained")
    with tiny.session(params, mtp_context=mtp_context) as session:
        session.decode([Chunk(tiny.prompt, 0, feed=True)])
        for start in range(0, len(tiny.prompt), params.n_ubatch):  # the reference takes one ubatch at a time
            reference.decode(tiny.prompt[start : start + params.n_ubatch], start)
        np.testing.assert_allclose(session.logits[0], reference.logits[-1], **TRUNK)

        for n_right in ROUNDS[:n_rounds]:  # n: tokens of the text so far; all but the last are decoded
            if n + K > len(text):
                break
            script = scripted(text[n : n + K], n_right, rng)
            reference.draft(text[n - 1], n - 1, script)
            expect_same_drafts(tiny, draft(session, text[n - 1], n - 1, script), reference)

            session.decode([Chunk([text[n - 1], *script], n - 1, logits="all", feed=True)])
            reference.decode([text[n - 1], *script], n - 1)
            np.testing.assert_allclose(session.logits, reference.logits, **TRUNK)

            n += n_right + 1
            session.truncate(n - 1)
            reference.truncate(n - 1)
    reference.close()


def expect_same_drafts(tiny: Tiny, logits: Logits, reference: TwoContexts) -> None:
    for ours, theirs in zip(logits[: tiny.family.n_compared], reference.draft_logits, strict=False):
        np.testing.assert_allclose(ours, theirs, **HEAD)


@some_rounds
def test_fused_drafts_equal_those_of_single_steps(tiny: Tiny, n_rounds: int) -> None:
    rng, text, n = random.Random(5), tiny.text, len(tiny.prompt) + 1
    with (
        tiny.session(PARAMS) as steps,
        tiny.session(PARAMS) as graph,
    ):
        for session in (steps, graph):
            session.decode([Chunk(tiny.prompt, 0, feed=True)])
        for n_right in ROUNDS[:n_rounds]:
            (drafts,), (probs,) = graph.draft_tokens([Chunk([text[n - 1]], n - 1)], K, probs=True)
            logits = draft(steps, text[n - 1], n - 1, drafts)
            assert drafts == logits.argmax(axis=1).tolist()
            likelihood = np.exp(logits - logits.max(axis=1, keepdims=True))
            np.testing.assert_allclose(
                probs, (likelihood / likelihood.sum(axis=1, keepdims=True)).max(axis=1), atol=1e-5
            )

            script = scripted(text[n : n + K], n_right, rng)
            n += n_right + 1
            for session in (steps, graph):
                session.decode([Chunk([text[n - n_right - 2], *script], n - n_right - 2, feed=True)])
                session.truncate(n - 1)


@some_rounds
@pytest.mark.parametrize("params", [PARAMS, USUAL], ids=["F32", "flash attention, F16"])
def test_greedy_tokens_with_drafts_equal_plain_decoding(tiny: Tiny, params: ContextParams, n_rounds: int) -> None:
    rng = random.Random(3)
    text = plain_text(tiny.model, tiny.prompt, 3 * n_rounds, params)
    with tiny.session(params) as session:
        session.decode([Chunk(tiny.prompt, 0, feed=True)])
        made = [*tiny.prompt, int(session.logits[0].argmax())]
        for n_right in [None, *ROUNDS[:n_rounds]]:
            if n_right is None or n_right % 4 == 0:  # the head's own drafts
                (drafts,), _ = session.draft_tokens([Chunk([made[-1]], len(made) - 1)], K)
            else:
                drafts = scripted(text[len(made) : len(made) + K], n_right, rng)
                draft(session, made[-1], len(made) - 1, drafts)
            session.decode([Chunk([made[-1], *drafts], len(made) - 1, logits="all", feed=True)])
            said = session.logits.argmax(axis=1).tolist()
            n_accepted = next((i for i in range(K) if said[i] != drafts[i]), K)
            made += said[: n_accepted + 1]
            session.truncate(len(made) - 1)
    n = min(len(made), len(text))
    assert n > len(tiny.prompt) + n_rounds
    assert made[:n] == text[:n]


@pytest.mark.parametrize("n_right", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2)), K])
def test_logits_after_a_rollback_equal_those_of_a_fresh_decode(tiny: Tiny, n_right: int) -> None:
    rng, text, n = random.Random(n_right), tiny.text, len(tiny.prompt) + 1
    with (
        tiny.session(PARAMS) as back,
        tiny.session(PARAMS) as fresh,
    ):
        back.decode([Chunk(tiny.prompt, 0, feed=True)])
        for right in (0, 2, 0, 0, 1, n_right):
            script = scripted(text[n : n + K], right, rng)
            draft(back, text[n - 1], n - 1, script)
            back.decode([Chunk([text[n - 1], *script], n - 1, feed=True)])
            n += right + 1
            back.truncate(n - 1)
        fresh.decode([Chunk(text[: n - 1], 0, feed=True)])

        script = scripted(text[n : n + K], 2, rng)
        np.testing.assert_allclose(*(draft(session, text[n - 1], n - 1, script) for session in (back, fresh)), **HEAD)
        for session in (back, fresh):
            session.decode([Chunk([text[n - 1], *script], n - 1, logits="all", feed=True)])
        np.testing.assert_allclose(back.logits, fresh.logits, **TRUNK)


@pytest.mark.parametrize("kv_unified", [True, False], ids=["one cache", "a stream each"])
def test_a_copied_sequence_continues_like_the_original(tiny: Tiny, kv_unified: bool) -> None:
    params = replace(PARAMS, kv_unified=kv_unified, n_seq_max=3)
    with tiny.session(params) as session:
        session.decode([Chunk(tiny.prompt, 0, feed=True)])
        session.copy(0, 2)
        expect_same(go_on(tiny, session, 2), go_on(tiny, session, 0))


def test_a_restored_session_continues_like_the_saved_one(tiny: Tiny) -> None:
    params = replace(PARAMS, n_seq_max=2)
    with tiny.session(params) as saved, tiny.session(params) as other:
        saved.decode([Chunk(tiny.prompt, 0, 1, feed=True)])
        state = saved.save()
        expected = go_on(tiny, saved, 1)
        for session in (saved, other):
            session.restore(state)
            expect_same(go_on(tiny, session, 1), expected)


def test_a_freed_sequence_starts_over(tiny: Tiny) -> None:
    with tiny.session(PARAMS) as session:
        runs = []
        for _ in range(2):
            session.decode([Chunk(tiny.prompt, 0, feed=True)])
            runs.append(go_on(tiny, session))
            session.truncate(0)
        expect_same(*runs)


def go_on(tiny: Tiny, session: Session, sequence: int = 0) -> list[Logits]:
    """Two rounds after the prompt: logits of the head and of the trunk in turn."""
    rng, text, n, logits = random.Random(1), tiny.text, len(tiny.prompt) + 1, []
    for n_right in (1, 0):
        script = scripted(text[n : n + K], n_right, rng)
        logits.append(draft(session, text[n - 1], n - 1, script, sequence))
        session.decode([Chunk([text[n - 1], *script], n - 1, sequence, logits="all", feed=True)])
        logits.append(session.logits.copy())
        n += n_right + 1
        session.truncate(n - 1, sequence=sequence)
    return logits


def expect_same(actual: list[Logits], expected: list[Logits]) -> None:
    for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
        np.testing.assert_allclose(a, b, **(TRUNK if i % 2 else HEAD))


def test_positions_shift_where_the_memory_supports_it(tiny: Tiny) -> None:
    rng = random.Random(2)
    with tiny.session(PARAMS) as session:
        session.decode([Chunk(tiny.prompt, 0, feed=True)])
        session.draft_tokens([Chunk([5], len(tiny.prompt))], K)  # its cells are in the way
        if not tiny.family.moves:
            with pytest.raises(PymtpError, match="no context shift"):
                session.discard(10, 20)
            return
        reference = tiny.two_contexts(PARAMS)
        for start in range(0, len(tiny.prompt), PARAMS.n_ubatch):
            reference.decode(tiny.prompt[start : start + PARAMS.n_ubatch], start)
        for cache in (session, reference):
            cache.discard(10, 20)
        n = len(tiny.prompt) - 20
        for n_kept in (3, 2, 1, 4):
            script = [rng.randrange(N_VOCAB) for _ in range(K)]
            reference.draft(5, n, script)
            expect_same_drafts(tiny, draft(session, 5, n, script), reference)
            session.decode([Chunk([5, *script], n, logits="all", feed=True)])
            reference.decode([5, *script], n)
            np.testing.assert_allclose(session.logits, reference.logits, **TRUNK)
            n += n_kept
            for cache in (session, reference):
                cache.truncate(n)
        reference.close()


@pytest.mark.parametrize("kind", ["bf16", "q8_0", "iq4_nl"])
def test_keys_of_every_type_move(tiny: Tiny, kind: str) -> None:
    params = replace(USUAL, n_ctx=256, n_ubatch=64, type_k=kind, type_v=kind)
    if tiny.family.moves:
        far = distances_of_moved(tiny, params)
        # other experts are picked in one row or another, other positions where it is an index that picks
        assert min(far) < 0.1 or kind == "iq4_nl" or tiny.family.memory == "own"
        return
    with tiny.session(params) as session:
        session.decode([Chunk(tiny.text[:100], 0, feed=True)])
        with suppress(PymtpError):  # a window that has not been left yet moves
            session.discard(0, 30)


MOVED = {"f32": 1e-5, "f16": 1e-2, "bf16": 0.05, "q8_0": 0.05}
"""How far logits may be from those of keys that were not rounded twice; 0.5 with other types. They deviate by 1."""


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_a_part_of_each_key_is_rotated_whatever_its_type(tmp_path: Path, kind: str) -> None:
    rng, model = random.Random(7), load(write_glm4moe(tmp_path / "tiny.gguf"))
    text = [rng.randrange(N_VOCAB) for _ in range(100)]
    tiny = Tiny(FAMILIES["glm4moe"], model, [], text, [], None)
    assert max(distances_of_moved(tiny, replace(PARAMS, n_ubatch=64, type_k=kind))) < MOVED.get(kind, 0.5)
    llama_cpp.llama_model_free(model)


def distances_of_moved(tiny: Tiny, params: ContextParams) -> list[float]:
    """Without the first ones, the others see one another the same wherever they are: how far are these logits?"""
    n, n_gone, script = 100, 30, [6, 7, 8]
    stays = tiny.two_contexts(params)
    for start in range(0, n, 64):
        stays.decode(tiny.text[start : min(start + 64, n)], start)
    stays.forget(0, n_gone)
    stays.draft(5, n, script)
    stays.decode([5], n)
    with tiny.session(params) as moves:
        moves.decode([Chunk(tiny.text[:n], 0, feed=True)])
        moves.discard(0, n_gone)
        logits = draft(moves, 5, n - n_gone, script)
        moves.decode([Chunk([5], n - n_gone)])
        logits = np.concatenate([moves.logits, logits[: tiny.family.n_compared]])
    expected = [*stays.logits, *stays.draft_logits[: tiny.family.n_compared]]
    stays.close()
    assert np.isfinite(logits).all()
    return [abs(ours - theirs).max() for ours, theirs in zip(logits, expected, strict=True)]


def test_drafts_can_be_limited_to_a_part_of_the_vocabulary(tiny: Tiny) -> None:
    position, token, script = len(tiny.prompt), 5, [6, 7, 8]
    with tiny.session(PARAMS) as session:
        session.decode([Chunk(tiny.prompt, 0, feed=True)])
        expected = draft(session, token, position, script)
        limits: dict[str, list[int]] = {"the first": list(range(64)), "some": [3, 100, 300, N_VOCAB - 1]}
        for name, tokens in limits.items():
            if name == "the first":
                session.limit_drafts(len(tokens))
            else:
                session.limit_drafts_to(tokens, [rows[tokens].view(np.uint8) for rows in tiny.outputs])
            logits = draft(session, token, position, script)
            # an assistant that chooses tokens does not choose among listed ones
            of_all = np.isfinite(expected[:, tokens])
            np.testing.assert_allclose(logits[:, tokens][of_all], expected[:, tokens][of_all], **HEAD)
            assert np.isfinite(logits[:, tokens]).all()
            assert np.isneginf(np.delete(logits, tokens, axis=1)).all()
            ((picked,),), _ = session.draft_tokens([Chunk([token], position)], 1)
            assert picked == tokens[logits[0, tokens].argmax()]
        session.limit_drafts(None)
        np.testing.assert_allclose(draft(session, token, position, script), expected, **HEAD)


@pytest.mark.parametrize("n_rounds", [6, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kv_unified", [True, False], ids=["one cache", "a stream each"])
def test_three_sequences_together_equal_each_alone(tiny: Tiny, kv_unified: bool, n_rounds: int) -> None:
    together_alone(tiny, replace(PARAMS, kv_unified=kv_unified), "target", n_rounds)


@pytest.mark.parametrize("tiny", [name for name in FAMILIES if FAMILIES[name].n_heads > 1], indirect=True)
@pytest.mark.parametrize("mtp_context", ["target", "chained"])
def test_several_heads_read_the_trunk_or_each_other(tiny: Tiny, mtp_context: Literal["target", "chained"]) -> None:
    compare_with_two_contexts(tiny, PARAMS, 8, mtp_context)
    for kv_unified in (True, False):
        together_alone(tiny, replace(PARAMS, kv_unified=kv_unified), mtp_context, 6)


def together_alone(tiny: Tiny, params: ContextParams, mtp_context: Literal["target", "chained"], n_rounds: int) -> None:
    """Three sequences in one session, step by step and in one graph, and each in a session of its own."""
    rng, n_seq = random.Random(11), 3
    options = {"mtp_context": mtp_context}
    texts = [[rng.randrange(N_VOCAB) for _ in range(20 + 15 * seq)] for seq in range(n_seq)]
    steps, graph = (tiny.session(replace(params, n_seq_max=n_seq + 1), **options) for _ in range(2))
    alone = [tiny.session(PARAMS, **options) for _ in range(n_seq)]

    for session in (steps, graph):
        session.decode([Chunk(text, 0, seq, feed=True) for seq, text in enumerate(texts)])
    for seq, text in enumerate(texts):
        alone[seq].decode([Chunk(text, 0, feed=True)])
        np.testing.assert_allclose(steps.logits[seq], alone[seq].logits[0], **TRUNK)
        text.append(5)

    n_fed = [len(text) - 1 for text in texts]
    for i in range(n_rounds):
        # else the heads catch up in the round after: now and then those of all sequences, of one, of some
        feeds = [i % 5 != 4 and (2 * i < n_rounds or rng.random() < 0.6) for _ in texts]
        rows, positions = [text[n:] for text, n in zip(texts, n_fed, strict=True)], list(n_fed)
        picked, _ = graph.draft_tokens([Chunk(rows[s], positions[s], s) for s in range(n_seq)], K)
        scripts = [[rng.randrange(N_VOCAB) for _ in range(K)] for _ in texts]
        for step in range(K):
            steps.draft(step, K, [Chunk(rows[s], positions[s], s) for s in range(n_seq)])
            for seq in range(n_seq):
                alone[seq].draft(step, K, [Chunk(rows[seq], positions[seq])])
                np.testing.assert_allclose(steps.draft_logits[seq], alone[seq].draft_logits[0], **HEAD)
                if step == 0:
                    assert picked[seq][0] == alone[seq].draft_logits[0].argmax()
            rows, positions = [[script[step]] for script in scripts], [len(text) + step for text in texts]

        verified = [[text[-1], *script] for text, script in zip(texts, scripts, strict=True)]
        chunks = [Chunk(verified[s], len(texts[s]) - 1, s, logits="all", feed=feeds[s]) for s in range(n_seq)]
        for session in (steps, graph):
            session.decode(chunks)
        logits = steps.logits.reshape(n_seq, K + 1, -1).copy()
        for seq, text in enumerate(texts):
            alone[seq].decode([chunks[seq]._replace(sequence=0)])
            np.testing.assert_allclose(logits[seq], alone[seq].logits, **TRUNK)
            text += scripts[seq][: rng.randrange(K + 1)]
            for session, sequence in ((steps, seq), (graph, seq), (alone[seq], 0)):
                session.truncate(len(text), sequence=sequence)
            text.append(9)
            if feeds[seq]:
                n_fed[seq] = len(text) - 1
    for session in (steps, graph, *alone):
        session.close()


@pytest.mark.parametrize("name", [name for name in REFUSED if REFUSED[name].write])
def test_heads_that_cannot_run_are_refused_by_name_and_the_trunk_decodes(tmp_path: Path, name: str) -> None:
    refused, architecture = REFUSED[name], name.partition(",")[0]
    assert refused.write
    model = load(refused.write(tmp_path / "tiny.gguf"))
    assert len(plain_text(model, list(range(40)), 20)) == 60
    message = f"cannot run the MTP heads of {architecture} ({refused.reason});"
    with pytest.raises(PymtpError, match=re.escape(message)):
        Session(model, PARAMS, n_draft_max=K)
    llama_cpp.llama_model_free(model)


def test_more_heads_than_llama_cpp_runs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    writer = Writer(path, "glm4moe", 1, 2, {**blocks.EXPERTS, "expert_shared_count": 1, "leading_dense_block_count": 3})
    blocks.embeddings(writer)
    for i in range(3):
        writer.norm(f"blk.{i}.attn_norm.weight")
        writer.norm(f"blk.{i}.post_attention_norm.weight")
        blocks.attention(writer, f"blk.{i}.")
        blocks.feed_forward(writer, f"blk.{i}.")
        if i:
            blocks.head(writer, f"blk.{i}.")
    writer.finish()
    model = load(path)
    with pytest.raises(PymtpError, match="it runs a single head of them"):
        Session(model, PARAMS, n_draft_max=K)
    llama_cpp.llama_model_free(model)


def test_heads_that_were_not_loaded_are_refused(tmp_path: Path) -> None:
    model = load(write_glm4moe(tmp_path / "tiny.gguf"), load_mtp=False)
    with pytest.raises(PymtpError, match="their tensors are not loaded"):
        Session(model, PARAMS, n_draft_max=K)
    llama_cpp.llama_model_free(model)
