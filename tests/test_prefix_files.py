"""Prompts that survive a restart: in files, found by prefix, bounded, checked, and apart for each key."""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from http_server import running, wait_until
from pymtp import Generation, GenerationParams, InvalidParameter, Model
from pymtp.server import logs, served_model
from pymtp.server.settings import ServerSettings

pytestmark = pytest.mark.model

LONG = "Once there was a miller who had three sons, a mill, a donkey and a cat. " * 6
OPTIONS: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "cache_prompt": True}
ROOM = 64 << 20


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Model]:
    def load(n_bytes: int = ROOM, **options: Any) -> Model:
        model = Model(**{"n_ctx": 512, "n_threads": 1, "n_seq_max": 2, "draft_max": 3} | options)
        model.slots.keep_files(tmp_path, n_bytes)
        return model

    return load


def answer(model: Model, prompt: str, **options: Any) -> tuple[str, Generation]:
    generation = model.generate(prompt, **OPTIONS | options)
    return "".join(generation), generation


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.prefix"), key=lambda path: path.stat().st_mtime_ns)


def test_a_prompt_is_found_after_a_restart_with_its_heads(load: Callable[..., Model], tmp_path: Path) -> None:
    with load() as model:
        text, first = answer(model, LONG)
        model.slots.write_files()
        model.slots.write_files()
    (path,) = files(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with load() as model:
        again_text, again = answer(model, LONG)
        assert (again_text, again.n_cached) == (text, again.n_prompt - 1)
        assert again.stats.accepted == first.stats.accepted > 0
        _, more = answer(model, f"{LONG}And then")
        assert more.n_cached > 0.9 * more.n_prompt


def test_what_begins_like_a_longer_one_needs_no_file(load: Callable[..., Model], tmp_path: Path) -> None:
    with load() as model:
        text, _ = answer(model, LONG)
        model.slots.write_files()
        answer(model, LONG + text)
        model.slots.write_files()
        assert len(files(tmp_path)) == 1
        answer(model, "short")
        model.slots.write_files()
        assert len(files(tmp_path)) == 1


SHARING = """
import sys
from pymtp import Model
name, folder, n_bytes, long = sys.argv[1:]
with Model(n_ctx=512, n_threads=1) as model:
    model.slots.keep_files(folder, int(n_bytes))
    for i in range(4):
        text = f"{name} {i} {long}"
        "".join(model.generate(text, temperature=0, max_tokens=2, cache_prompt=True))
        model.slots.write_files()
"""


def test_processes_share_a_folder(load: Callable[..., Model], tmp_path: Path) -> None:
    with load() as model:
        text, _ = answer(model, LONG)
        model.slots.write_files()
    n_bytes = int(3.5 * files(tmp_path)[0].stat().st_size)
    command = [sys.executable, "-c", SHARING]
    running = [subprocess.Popen([*command, name, str(tmp_path), str(n_bytes), LONG]) for name in ("one", "two")]
    assert [each.wait(timeout=60) for each in running] == [0, 0]
    assert len(files(tmp_path)) == 3 == len(list(tmp_path.iterdir()))
    with load(n_bytes) as model:
        assert answer(model, f"two 3 {LONG}")[1].n_cached > 50 or answer(model, f"one 3 {LONG}")[1].n_cached > 50


def test_texts_of_another_key_do_not_find_it(load: Callable[..., Model]) -> None:
    with load() as model:
        answer(model, LONG, cache_scope="one")
        model.slots.write_files()
    with load() as model:
        assert answer(model, LONG, cache_scope="two")[1].n_cached == 0
        assert answer(model, LONG, cache_scope="one")[1].n_cached > 0


def test_the_folder_is_bounded_and_the_oldest_goes_first(load: Callable[..., Model], tmp_path: Path) -> None:
    with load() as model:
        answer(model, f"0 {LONG}")
        model.slots.write_files()
    n_bytes = files(tmp_path)[0].stat().st_size
    with load(int(2.5 * n_bytes)) as model:
        for i in (1, 2):
            answer(model, f"{i} {LONG}")
            model.slots.write_files()
        assert len(files(tmp_path)) == 2
        model.slots.empty()
        assert answer(model, f"0 {LONG}")[1].n_cached < 10
        assert answer(model, f"1 {LONG}")[1].n_cached > 10
    with load(n_bytes // 2) as model:
        answer(model, f"3 {LONG}")
        model.slots.write_files()  # longer than the room: it is not written, and nothing is dropped for it
        assert len(files(tmp_path)) == 2


def test_what_a_killed_process_left_is_bounded_too(load: Callable[..., Model], tmp_path: Path) -> None:
    left = tmp_path / ".0123.prefix.abc"  # half of a file that never got its name
    left.write_bytes(bytes(8 << 20))
    os.utime(left, (1, 1))
    for n_bytes, is_there in ((ROOM, True), (8 << 20, False)):
        with load(n_bytes) as model:
            answer(model, f"{n_bytes} {LONG}")
            model.slots.write_files()
        assert left.exists() == is_there


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "other", "no UTF-8", "tokens"])
def test_what_cannot_be_used_is_computed_again(load: Callable[..., Model], tmp_path: Path, damage: str) -> None:
    with load() as model:
        text, _ = answer(model, LONG)
        model.slots.write_files()
    (path,) = files(tmp_path)
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[:-100])
    elif damage == "flipped":
        path.write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])
    elif damage == "no UTF-8":
        path.write_bytes(data.replace(b',""]\n', b',"\xff"]\n', 1))
    elif damage == "tokens":
        path.write_bytes(data.replace(b"]", b",7]", 1))
    elif damage == "other":
        path.with_name("0.prefix").write_bytes(data.replace(b'"model": "', b'"model": "x', 1))
        path.unlink()
    with load() as model:
        if damage == "gone":
            path.unlink()
        again_text, again = answer(model, LONG)
        assert (again_text, again.n_cached) == (text, 0)
        model.slots.write_files()
        assert len(files(tmp_path)) == (2 if damage == "other" else 1)
    with load() as model:
        assert answer(model, LONG)[1].n_cached > 0


@pytest.mark.parametrize("options", [{"draft_max": 0}, {"type_k": "q8_0"}, {"flash_attn": "off"}], ids=str)
def test_files_of_other_settings_take_nothing_away(load: Callable[..., Model], options: dict[str, Any]) -> None:
    with load() as model:
        answer(model, f"{LONG}And then the cat")
        model.slots.write_files()
    with load(**options) as model:
        assert answer(model, LONG)[1].n_cached == 0
        assert answer(model, f"{LONG}And then the cat")[1].n_cached > 100  # of what the slot held


def test_a_folder_that_is_lost_ends_no_text(load: Callable[..., Model], tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    with load() as model:
        model.slots.keep_prefixes(ROOM)
        model.slots.keep_files(folder, ROOM)
        text, _ = answer(model, LONG)
        model.slots.write_files()
        folder.rename(other)
        folder.touch()  # what is below cannot even be looked up
        answer(model, LONG + text + " And then")  # in place of what the file has
        for i in range(3):
            answer(model, f"{i} {LONG}")
        model.slots.write_files()


def test_a_server_finds_its_prompts_again(tmp_path: Path) -> None:
    def load() -> Model:
        return Model(n_ctx=512, n_threads=1, n_seq_max=2)

    settings = ServerSettings(params=GenerationParams(cache_prompt=True), cache_dir=tmp_path)
    body = {"prompt": LONG, "n_predict": 8, "temperature": 0}
    for n in range(2):
        with running(load, settings) as client:
            timings = client.post("/completion", **body).json["timings"]
        assert (timings["cache_n"] > 50) == bool(n)
        assert len(files(tmp_path)) == 1


def test_a_server_writes_prompts_when_nobody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_model, "IDLE_S", 0.01)
    settings = ServerSettings(params=GenerationParams(cache_prompt=True), cache_dir=tmp_path)
    with running(lambda: Model(n_ctx=512, n_threads=1), settings) as client:
        client.post("/completion", prompt=LONG, n_predict=8)
        wait_until(lambda: bool(files(tmp_path)))


def test_a_server_says_once_that_prompts_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(served_model, "IDLE_S", 0.01)
    monkeypatch.setattr(os, "replace", is_full)
    monkeypatch.setattr(logging.getLogger("pymtp.server"), "handlers", [])
    logs.set_up(is_quiet=True)
    settings = ServerSettings(params=GenerationParams(cache_prompt=True), cache_dir=tmp_path)
    with running(lambda: Model(n_ctx=512, n_threads=1), settings) as client:
        for i in range(3):
            client.post("/completion", prompt=f"{i} {LONG}", n_predict=2)
            time.sleep(0.1)
    (line,) = capsys.readouterr().err.splitlines()
    assert "warning: prompts are not kept" in line
    assert f"cannot write {tmp_path}" in line and "No space left on device" in line


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Model(n_ctx=64, n_threads=1) as model:
        for place in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(InvalidParameter, match="cache_dir must be a folder that can be written"):
                model.slots.keep_files(place, ROOM)
        if os.path.isdir("/proc"):
            with pytest.raises(InvalidParameter, match="cache_dir must be a folder"):
                model.slots.keep_files("/proc/pymtp", ROOM)
