"""The format of saved states: only an intact state of the same model is restored."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from pymtp.binding.library import abi_id
from pymtp.engine import snapshot as state
from pymtp.engine.context import ContextParams
from pymtp.engine.session import Chunk, Session
from pymtp.errors import StateError
from pymtp.gguf.facts import model_facts
from pymtp.loader import Weights
from pymtp.loading.params import ModelParams
from random_gguf import write_mimo2

PAYLOAD = bytes(range(256)) * 5
WHO = {"engine": "engine 1", "model": "abc"}


def test_a_packed_payload_is_unpacked_unchanged() -> None:
    assert bytes(state.unpack(state.pack(PAYLOAD, **WHO), **WHO)) == PAYLOAD
    assert bytes(state.unpack(state.pack(b"", **WHO), **WHO)) == b""


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:-1], r"truncated: 1279 of 1280 bytes; save it again"),
        (lambda data: data + b"x", r"truncated: 1281 of 1280 bytes"),
        (lambda data: data[:-1] + b"x", r"checksum differs"),
        (lambda data: b"", r"not a saved state"),
        (lambda data: b"GGUF" + data, r"not a saved state"),
        (lambda data: data[:20], r"not a saved state"),
        (lambda data: data.replace(b'"n_bytes": ', b'"n_bytes" '), r"header of the saved state is damaged"),
        (lambda data: data.replace(b'"sha256"', b'"sha257"'), r"header of the saved state is damaged"),
    ],
)
def test_damaged_bytes_are_refused(damage: object, reason: str) -> None:
    with pytest.raises(StateError, match=reason):
        state.unpack(damage(state.pack(PAYLOAD, **WHO)), **WHO)  # type: ignore[operator]


def test_a_state_of_another_version_or_model_is_refused() -> None:
    data = state.pack(PAYLOAD, **WHO)
    with pytest.raises(StateError, match=r"another version \(engine 1, this is engine 2\)"):
        state.unpack(data, engine="engine 2", model="abc")
    with pytest.raises(StateError, match="another model; load the model"):
        state.unpack(data, engine="engine 1", model="abd")


def test_the_header_is_one_line_of_json() -> None:
    head = state.pack(PAYLOAD, **WHO).split(b"\n")[0]
    assert json.loads(head.removeprefix(b"pymtp-state "))["model"] == "abc"


def test_a_file_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "session.state"
    state.write(path, b"old")
    with pytest.raises(StateError, match="cannot write .*choose another place"):
        state.write(tmp_path / "missing" / "session.state", b"new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StateError, match="cannot write"):
        state.write(tmp_path / "folder", b"new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "session.state"]
    state.write(path, b"new")
    assert state.read(path) == b"new"
    with pytest.raises(StateError, match="cannot read .*check the path"):
        state.read(tmp_path / "nothing")


def test_only_a_regular_file_is_read_and_a_link_stays_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(StateError, match="it is not a regular file"):
            state.read(odd)
    for use in (state.read, lambda path: state.write(path, b"x")):
        with pytest.raises(StateError, match="cannot"):
            use("a\0b")  # type: ignore[no-untyped-call]
    (tmp_path / "link").symlink_to(tmp_path / "file")
    state.write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("is_alone", [True, False], ids=["sequence", "session"])
def test_a_state_with_a_cell_before_the_first_position_is_refused(tmp_path: Path, is_alone: bool) -> None:
    weights = Weights(model_facts(write_mimo2(tmp_path / "tiny.gguf")), ModelParams(), with_heads=True)
    session = Session(weights.model, ContextParams(n_ctx=64, n_threads=1), n_draft_max=1, model_id="m")
    session.decode([Chunk(list(range(7)), 0)])
    expected = session.logits.tolist()
    payload = (session.save_sequence(0) if is_alone else session.save()).partition(b"\n")[2]
    cell = struct.Struct("<ii")  # a position, and the number of its sequences
    assert cell.pack(5, 1) in payload
    odd = state.pack(payload.replace(cell.pack(5, 1), cell.pack(-5, 1)), engine=abi_id(), model="m")
    with pytest.raises(StateError, match="does not fit this session"):
        session.restore_sequence(0, odd) if is_alone else session.restore(odd)
    session.truncate(0)
    session.decode([Chunk(list(range(7)), 0)])
    assert session.logits.tolist() == expected


def test_the_error_of_a_state_keeps_no_view_in_use(tmp_path: Path) -> None:
    """Python crashes where it collects one: a server that refuses to restore a slot would end."""
    weights = Weights(model_facts(write_mimo2(tmp_path / "tiny.gguf")), ModelParams(), with_heads=True)
    session = Session(weights.model, ContextParams(n_ctx=64, n_threads=1), n_draft_max=1, model_id="m")
    with pytest.raises(StateError, match="does not fit this session") as refused:
        session.restore(state.pack(PAYLOAD, engine=abi_id(), model="m"))
    kept = [value for entry in refused.traceback for value in entry.frame.f_locals.values()]
    views = [value for value in kept if isinstance(value, memoryview)]
    assert views
    for view in views:
        view.release()  # raises BufferError if it is in use


def test_a_state_with_a_cell_that_has_a_sequence_twice_is_refused(tmp_path: Path) -> None:
    """It would be counted twice, and freed once: nothing could be decoded at its place."""
    weights = Weights(model_facts(write_mimo2(tmp_path / "tiny.gguf")), ModelParams(), with_heads=True)
    params = ContextParams(n_ctx=64, n_seq_max=2, n_threads=1, kv_unified=True)
    session = Session(weights.model, params, n_draft_max=1, model_id="m")
    session.decode([Chunk(list(range(7)), 0)])
    expected = session.logits.tolist()
    session.copy(0, 1)
    payload = session.save().partition(b"\n")[2]
    cell = struct.Struct("<iiii")  # a position, the number of its sequences, and these
    assert cell.pack(5, 2, 0, 1) in payload
    odd = state.pack(payload.replace(cell.pack(5, 2, 0, 1), cell.pack(5, 2, 1, 1)), engine=abi_id(), model="m")
    with pytest.raises(StateError, match="does not fit this session"):
        session.restore(odd)
    for sequence in (0, 1):
        session.truncate(0, sequence=sequence)
        session.decode([Chunk(list(range(7)), 0, sequence)])
        assert session.logits.tolist() == expected
