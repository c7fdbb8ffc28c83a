"""Heads of pymtp's own form, for models that have none: what they compute, what they fit, and their training."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
from pymtp_cli.app import app
from typer.testing import CliRunner

from machine import needs_exact_texts
from pymtp import Model, SamplingParams
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk
from pymtp.errors import BackendError, InvalidParameter, ModelError, PymtpError, UnsupportedModel
from pymtp.gguf.facts import model_facts
from pymtp.gguf.model_file import ModelFile
from pymtp.heads import attach_heads, extract_heads
from random_gguf import N_VOCAB, write_generic, write_glm4moe, write_glm_dsa
from random_gguf.generic import TRUNKS, write_trunk
from random_gguf.side_files import split_heads, write_shards
from reference.trained_head import TrainedHead
from test_families import PARAMS
from test_side_files import text

ROTATIONS = {
    **dict.fromkeys(("llama", "deepseek2", "granitehybrid"), (32, False)),
    "glm4": (16, False),
}
"""Numbers that rotate, and whether the halves of a pair are far apart. Others: (32, True)."""
K = 3


def apart(tmp_path: Path, architecture: str = "llama") -> tuple[Path, Path]:
    """A trunk, and a random head that is for it, in files of their own."""
    whole, trunk, head = (tmp_path / f"{name}.gguf" for name in ("whole", "trunk", "head"))
    write_generic(architecture)(whole)
    split_heads(whole, trunk, head)
    return trunk, head


@pytest.mark.parametrize("architecture", TRUNKS)
def test_logits_equal_those_of_numpy(tmp_path: Path, architecture: str) -> None:
    path = write_generic(architecture)(tmp_path / "tiny.gguf")
    n_rot, is_neox = ROTATIONS.get(architecture, (32, True))
    head = TrainedHead(path, path, n_rot=n_rot, is_neox=is_neox)
    tokens = [int(token) for token in np.random.default_rng(5).integers(0, N_VOCAB, 20 + K)]
    with Model(path, draft="mtp", draft_max=K, context=PARAMS, device=[]) as model:
        session = model.session
        session.decode([Chunk(tokens[:20], 0, feed=True)])
        states = session.hidden_states(0, 20)
        said = np.zeros(states.shape[1])
        for token, state in zip(tokens[:20], [said, *states[:-1]], strict=True):
            head.row(token, state)
        said = states[-1]
        for step in range(K):
            session.draft(step, K, [Chunk([tokens[20 + step]], 20 + step)])
            said, logits = head.row(tokens[20 + step], said)
            np.testing.assert_allclose(session.draft_logits[0], logits, rtol=0, atol=1e-4)


@needs_exact_texts
@pytest.mark.parametrize("architecture", ["llama", "deepseek2", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_text_is_the_plain_one_and_drafts_are_made(tmp_path: Path, architecture: str) -> None:
    trunk, head = apart(tmp_path, architecture)
    with Model(trunk, draft="none", n_threads=1) as plain, Model(trunk, draft_model=head, n_threads=1) as model:
        assert model.draft_note is None
        assert model.session.mtp_memory == "shared"
        assert text(model) == text(plain)
        sampling = SamplingParams(temperature=0)
        generation = model.generate([7] * 40, sampling=sampling, max_tokens=20, draft_max=3, ignore_eos=True)
        assert list(generation) and generation.stats.drafted > 0


YARN: dict[str, float | str] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("qwen2", YARN),
        ("llama", {**YARN, "rope.scaling.attn_factor": 1.2}),
        ("mistral3", {**YARN, "rope.scaling.yarn_log_multiplier": 0.5, "rope.scaling.yarn_beta_slow": 0.25}),
        ("deepseek2", {**YARN, "rope.scaling.yarn_log_multiplier": 0.1, "rope.scaling.yarn_beta_slow": 0.25}),
        ("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    ],
    ids=["qwen2", "llama", "mistral3", "deepseek2", "linear"],
)
def test_pytorch_scales_positions_as_the_engine_does(
    tmp_path: Path, architecture: str, more: dict[str, float | str]
) -> None:
    torch = pytest.importorskip("torch")
    from pymtp.training.form import Form, first_tensors, read_tensor, write_head
    from pymtp.training.head import Head, rotation_of

    trunk, first, n = write_trunk(tmp_path / "trunk.gguf", architecture, more=more), tmp_path / "first.gguf", 200
    file = ModelFile(trunk)
    form = Form(file)
    tensors = first_tensors(file, form, 1)
    write_head(first, file, tensors, "f32")
    embedding, output = (torch.tensor(read_tensor(file.tensors[f"{name}.weight"])) for name in ("token_embd", "output"))
    tokens = [int(token) for token in np.random.default_rng(5).integers(0, N_VOCAB, n + K)]
    with Model(trunk, draft_model=first, draft="mtp", draft_max=K, context=PARAMS, device=[]) as model:
        head = Head(form, tensors, rotation_of(model.session, form.n_head_k, n + 1 + K))
        states = [np.zeros((1, form.n_embd), np.float32)]
        for begin in range(0, n, 20):
            model.session.decode([Chunk(tokens[begin : begin + 20], begin, feed=True)])
            states.append(model.session.hidden_states(begin, 20))
        said = torch.tensor(np.concatenate(states))[None]
        cache: list[Any] = []
        for step in range(K):
            model.session.draft(step, K, [Chunk([tokens[n + step]], n + step)])
            rows = torch.tensor((tokens[step:] + tokens[:step])[: n + 1])
            with torch.no_grad():
                said = head(embedding[rows][None], said, step, cache)
            logits = (said[0, -1] @ output.T).numpy()
            np.testing.assert_allclose(model.session.draft_logits[0], logits, rtol=0, atol=1e-4)


def test_only_rows_of_a_trained_heads_keys_are_rotated(tmp_path: Path) -> None:
    trunk, head = apart(tmp_path)
    with Model(trunk, draft_model=head, draft="mtp", draft_max=1, n_threads=1) as model:
        assert model.session.rotated(0, np.eye(32, dtype=np.float32)).tolist() == np.eye(32).tolist()
        for n_rows, n_columns in ((1, 3), (0, 32), (33, 32)):
            with pytest.raises(PymtpError):
                model.session.rotated(5, np.zeros((n_rows, n_columns), np.float32))
    with Model(n_threads=1) as model, pytest.raises(PymtpError, match="no trained head has 1 keys of 32 numbers"):
        model.session.rotated(0, np.zeros((1, 32), np.float32))


def test_two_models_with_a_head_each_draft_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first, second = apart(tmp_path), apart(tmp_path / "other", "qwen3")
    with Model(first[0], draft_model=first[1], n_threads=1) as one:
        alone = text(one)
        with Model(second[0], draft_model=second[1], n_threads=1) as two:
            assert text(two) != alone
            assert text(one) == alone


def test_a_head_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    trunk, head = apart(tmp_path)
    other = write_trunk(tmp_path / "other.gguf", "llama")
    assert model_facts(other, head).has_heads  # the same norms: another type, or an adapter that was merged
    reader = gguf.GGUFReader(other, "r+")
    norm = next(tensor for tensor in reader.tensors if tensor.name == "output_norm.weight")
    norm.data[3] += 0.5
    reader.data.flush()
    del reader
    problem = "it was trained for another model of this shape: train it further, heads train --init"
    with pytest.raises(ModelError, match=re.escape(problem)):
        model_facts(other, head)
    with pytest.raises(ModelError, match="its architecture is llama, not qwen3"):
        model_facts(write_trunk(tmp_path / "third.gguf", "qwen3"), head)
    with pytest.raises(ModelError, match="it is of a model with 3 layers, not 2"):
        model_facts(write_trunk(tmp_path / "fourth.gguf", "llama", n_layer=2), head)


def test_a_trained_head_fits_the_model_in_several_files_too(tmp_path: Path) -> None:
    trunk, head = apart(tmp_path)
    assert model_facts(write_shards(trunk, tmp_path, 2)[0], head).has_heads


def test_a_trained_head_is_a_file_like_other_heads(tmp_path: Path) -> None:
    trunk, head = apart(tmp_path)
    whole = attach_heads(trunk, head, tmp_path / "whole2.gguf")
    again = extract_heads(whole, tmp_path / "again.gguf", bare=True)
    names = [[name for name in ModelFile(path).tensors if name.startswith("blk.")] for path in (again, head)]
    assert names[0] == names[1] != []
    with Model(whole, draft="mtp", n_threads=1) as one, Model(trunk, draft_model=again, n_threads=1) as two:
        assert text(one) == text(two)
        with Model(whole, draft="none", n_threads=1) as plain:  # which loads no tensor of the head
            assert text(plain) == text(one)


def test_a_model_that_cannot_have_such_a_head_says_why(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from pymtp.training import TrainParams, train_head

    split_heads(write_glm_dsa(tmp_path / "dsa.gguf"), tmp_path / "trunk.gguf", tmp_path / "heads.gguf")
    with pytest.raises(UnsupportedModel, match="has an index of its compressed keys"):
        train_head(tmp_path / "trunk.gguf")
    with pytest.raises(UnsupportedModel, match="has MTP heads; name a model without them"):
        train_head(write_glm4moe(tmp_path / "glm.gguf"))
    for minutes in (0, math.nan, math.inf):
        with pytest.raises(InvalidParameter, match="minutes"):
            TrainParams(minutes=minutes)
    trunk = write_trunk(tmp_path / "llama.gguf", "llama")
    with pytest.raises(ModelError, match=r"missing.txt: no such file, .* name texts, or prompts in \*.jsonl"):
        train_head(trunk, params=TrainParams(data=(tmp_path / "missing.txt",)))
    (tmp_path / f"mtp-other-{ModelFile(trunk).trunk_id}.training").touch()
    with pytest.raises(ModelError, match=r"cannot make .*: File exists; name another file \(-o\)"):
        train_head(trunk, tmp_path / "mtp-other.gguf")


def prompts_for_tiny_models(tmp_path: Path) -> Path:
    """Prompts of the random models' own tokens."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"<x{i}><x{i + 1}>"}) + "\n" for i in range(40)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("architecture", TRUNKS)
def test_a_head_is_trained_and_drafts(tmp_path: Path, architecture: str) -> None:
    pytest.importorskip("torch")
    trunk = write_trunk(tmp_path / "trunk.gguf", architecture)
    prompts = prompts_for_tiny_models(tmp_path)
    command = ["heads", "train", str(trunk), "--minutes", "0.2", "--rows", "4000", "--data", str(prompts), "-t", "1"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "accepted by position in texts that were held out" in done.stderr
    assert f"--draft-model {tmp_path / 'mtp-trunk.gguf'}" in done.stderr
    with Model(trunk, draft="none", n_threads=1) as plain, Model(trunk, draft="mtp", n_threads=1) as model:
        assert text(model) == text(plain)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["Ctrl-C", "a GPU without memory"])
def test_a_training_that_ends_early_continues_where_it_was(tmp_path: Path, by: str) -> None:
    torch = pytest.importorskip("torch")
    from pymtp.training import TrainParams, train_head

    trunk = write_trunk(tmp_path / "trunk.gguf", "llama")
    data = (prompts_for_tiny_models(tmp_path),)
    params = TrainParams(data=data, minutes=0.3, n_rows=3000, n_threads=1)

    said = []

    def stop(line: str) -> None:
        said.append(line)
        if line.startswith("loss") and said[-2].startswith("loss"):  # what the first one tells of is kept by now
            raise KeyboardInterrupt if by == "Ctrl-C" else torch.OutOfMemoryError

    with pytest.raises(KeyboardInterrupt if by == "Ctrl-C" else BackendError, match=None if by == "Ctrl-C" else "cpu"):
        train_head(trunk, params=params, on_progress=stop)
    (folder,) = tmp_path.glob("mtp-trunk-*.training")
    saved, rows = folder / "checkpoint.pt", folder / "rows.bin"
    (folder / "rows.bin").write_bytes(rows.read_bytes() + b"half a text")  # as after a loss of power
    assert saved.exists() and not (tmp_path / "mtp-trunk.gguf").exists()
    lines: list[str] = []
    head = train_head(trunk, params=params, on_progress=lines.append)
    assert any("continues" in line for line in lines) and not saved.exists()
    again = train_head(trunk, force=True, params=replace(params, init=head, minutes=0.05))
    assert model_facts(trunk, again).has_heads


def test_a_second_training_of_the_same_head_is_refused_while_the_first_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, function in (("head", "rotation_of"), ("learn", "learn")):  # as if there were PyTorch: none gets so far
        monkeypatch.setitem(sys.modules, f"pymtp.training.{name}", SimpleNamespace(**{function: None}))
    from pymtp.training import train_head

    trunk = write_trunk(tmp_path / "trunk.gguf", "llama")

    def second(line: str) -> None:
        with pytest.raises(ModelError, match=r"another training uses .*\.training; wait for its end, or name another"):
            train_head(trunk)
        raise KeyboardInterrupt

    for _ in range(2):  # the end of the first lets the folder go
        with pytest.raises(KeyboardInterrupt):
            train_head(trunk, on_progress=second)


def test_a_training_that_is_stopped_before_it_learns_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from pymtp.training import TrainParams, collect, learn
    from pymtp.training.form import Form, first_tensors
    from pymtp.training.head import Rotation

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    trunk = ModelFile(write_trunk(tmp_path / "trunk.gguf", "llama"))
    form, rotation = Form(trunk), Rotation(*torch.zeros(3, 1))
    rows = collect.Rows(tmp_path, form.n_embd)
    rows.add([0] * 20, np.zeros((20, form.n_embd), np.float32))
    monkeypatch.setattr(learn, "trunk_of", stop)
    with pytest.raises(KeyboardInterrupt):
        tensors = first_tensors(trunk, form, 0)
        learn.learn(trunk, form, tensors, rotation, rows, tmp_path, TrainParams(), math.inf, lambda line: None)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_texts_that_end_at_once_are_collected_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pymtp.training import collect

    trunk, head = apart(tmp_path)
    context = ContextParams(n_ctx=collect.N_TOKENS, n_seq_max=collect.N_TEXTS + 1, n_threads=1, kv_unified=True)
    with Model(trunk, draft_model=head, draft="mtp", draft_max=1, context=context) as model:
        monkeypatch.setattr(model.vocabulary, "end_of_generation", frozenset(range(N_VOCAB)))
        monkeypatch.setattr(collect.Collector, "_answering", lambda self: self._sampler(0))
        rows = collect.Rows(tmp_path, int(ModelFile(trunk).number("embedding_length")))
        source = collect.Source(model, [prompts_for_tiny_models(tmp_path)], 1)
        collect.Collector(model, rows, source).run(100, math.inf, lambda line: None)
        assert len(rows) >= 100
        assert max(rows.lengths) < 20


def test_texts_are_read_and_continued_and_some_answers_do_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pymtp.training import collect

    trunk, head = apart(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("one line of a text\n" * 200)
    context = ContextParams(n_ctx=collect.N_TOKENS, n_seq_max=collect.N_TEXTS + 1, n_threads=1, kv_unified=True)
    with Model(trunk, draft_model=head, draft="mtp", draft_max=1, context=context) as model:
        monkeypatch.setattr(model.vocabulary, "end_of_generation", frozenset(range(N_VOCAB)) - {5})
        rows = collect.Rows(tmp_path, int(ModelFile(trunk).number("embedding_length")))
        collect.Collector(model, rows, collect.Source(model, [text], 1)).run(12_000, math.inf, lambda line: None)
    texts = np.split(np.memmap(rows.path, rows.kind, "r")["token"], np.cumsum(rows.lengths)[:-1])
    without_end = [tokens for tokens in texts if (tokens[collect.N_TOKENS // 4 :] == 5).all() and 5 in tokens]
    ended = [tokens for tokens in texts if len(tokens) <= collect.N_TOKENS // 4]
    read = sum(len(tokens) for tokens in texts if len(tokens) == collect.N_TOKENS and 5 not in tokens)
    assert {len(tokens) for tokens in without_end} == {collect.N_TOKENS}
    assert min(len(set(tokens)) for tokens in without_end) > 2, "they begin as the text does somewhere"
    assert ended
    assert 0.4 < read / len(rows) < 0.6


@pytest.mark.slow
def test_a_training_that_is_killed_continues_where_it_was(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    trunk, data = write_trunk(tmp_path / "trunk.gguf", "llama"), prompts_for_tiny_models(tmp_path)
    command = [sys.executable, "-m", "pymtp_cli", "heads", "train", str(trunk), "--data", str(data), "-t", "1"]
    command += ["--minutes", "0.4", "--rows", "3000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as training:
        assert training.stderr
        for line in training.stderr:
            if line.startswith("loss"):
                # what it has learned is written after each such line
                assert next(training.stderr).startswith("loss")
                training.kill()
                break
    assert not (tmp_path / "mtp-trunk.gguf").exists()
    again = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True)
    assert "continues after" in again.stderr and "collecting" not in again.stderr
    assert model_facts(trunk, tmp_path / "mtp-trunk.gguf").has_heads


FULL = """
import resource, sys
import numpy as np
from pathlib import Path
from pymtp.training.collect import Rows
rows = Rows(Path(sys.argv[1]), 4)
rows.add([1, 2, 3], np.ones((3, 4), np.float32))
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    rows.add([4] * 100, np.ones((100, 4), np.float32))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_disk_that_fills_is_one_line_and_keeps_what_there_is(tmp_path: Path) -> None:
    from pymtp.training.collect import Rows

    filled = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=True)
    path = tmp_path / "rows.bin"
    assert filled.stdout == f"ModelError cannot write {path}: File too large; free some room and repeat the command\n"
    again = Rows(tmp_path, 4)
    assert again.lengths == [3] and path.stat().st_size == 3 * again.kind.itemsize


def test_rows_that_were_cut_off_are_dropped(tmp_path: Path) -> None:
    from pymtp.training.collect import Rows

    rows = Rows(tmp_path, 4)
    rows.add([1, 2, 3], np.ones((3, 4), np.float32))
    (tmp_path / "rows.bin").open("ab").write(b"half a row")
    (tmp_path / "lengths.bin").open("ab").write(b"\1")
    again = Rows(tmp_path, 4)
    again.add([4, 5], np.full((2, 4), 2, np.float32))
    read = np.fromfile(rows.path, rows.kind)
    assert (again.lengths, read["token"].tolist()) == ([3, 2], [1, 2, 3, 4, 5])
    assert read["hidden"][3:].min() == 2
    with pytest.raises(ModelError, match=r"bytes of \d+ that are free; take fewer rows \(--rows\)"):
        again.check_room(10**15)


def test_what_was_learned_is_kept_until_the_head_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from pymtp.training import TrainParams, collect, learn, run
    from pymtp.training.form import write_head

    def collected(self: Any, *rest: Any) -> None:
        for _ in range(60):
            self._rows.add([1, 2] * 10, np.ones((20, self._rows.kind["hidden"].shape[0]), np.float32))

    def full(path: Path, *rest: Any) -> None:
        if path.name != "mtp-first.gguf":
            raise ModelError(f"no room for {path.name}")
        write_head(path, *rest)

    def half(state: object, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise RuntimeError("no room")

    def train() -> Path:
        return run.train_head(trunk, params=TrainParams(minutes=0.05, n_rows=1000, n_threads=1, device="cpu"))

    ticks = count()  # a clock that every machine has time enough by
    learn_until: Any = learn.learn
    monkeypatch.setattr(learn, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    monkeypatch.setattr(learn, "learn", lambda *args: learn_until(*args[:7], next(ticks) + 10, *args[8:]))
    trunk = write_trunk(tmp_path / "trunk.gguf", "llama")
    saved = tmp_path / f"mtp-trunk-{ModelFile(trunk).trunk_id}.training" / "checkpoint.pt"
    monkeypatch.setattr(collect.Collector, "run", collected)
    with monkeypatch.context() as patch:
        patch.setattr(run, "write_head", full)
        patch.setattr(learn, "_EVERY", 0)
        with pytest.raises(ModelError, match="no room for mtp-trunk.gguf"):
            train()
    kept = saved.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("torch.save", half)
        patch.setattr(learn, "_EVERY", 0)
        with pytest.raises(ModelError, match=r"checkpoint.pt: cannot be written \(no room\); free some room"):
            train()
    assert saved.read_bytes() == kept and not saved.with_suffix(".incomplete").exists()
    for damaged in (b"", b"no checkpoint", kept[: len(kept) // 2]):
        saved.write_bytes(damaged)
        with pytest.raises(ModelError, match=r"checkpoint.pt is damaged, or of another head; delete it and repeat"):
            train()
    saved.write_bytes(kept)
    assert train().exists() and not saved.exists()
