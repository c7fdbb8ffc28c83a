"""What CONTRIBUTING.md says a greedy round is read in: these files exist, and a round runs in no others."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pymtp

ROOT = Path(pymtp.__file__).parent
PAGE = (ROOT.parent / "CONTRIBUTING.md").read_text("utf-8")
SECTION = PAGE[PAGE.index("## One round, file by file") :].split("\n## ")[0]
STEPS, _, BESIDES = SECTION.partition("Not needed")
N_FILES_MAX = 13
N_RUN_MAX = 16
"""With those that need not be opened; in a round of a fixed draft length whose tokens have all come before."""


def named(text: str) -> list[str]:
    return re.findall(r"`([a-z_/]+\.py)`", text)


def test_a_round_is_read_in_few_files_that_exist() -> None:
    files = named(STEPS)
    assert len(files) == len(set(files)) <= N_FILES_MAX
    assert [name for name in (*files, *named(BESIDES)) if not (ROOT / name).is_file()] == []


@contextmanager
def noted(files: set[str]) -> Iterator[None]:
    """Add the package's files whose functions are called, in this thread and in those that begin meanwhile."""

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            files.add(path.relative_to(ROOT).as_posix())

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        threading.setprofile(before)
        sys.setprofile(before)


@pytest.mark.model
@pytest.mark.parametrize("draft_max", ["auto", 3])
def test_a_greedy_round_runs_in_no_other_files(draft_max: Any) -> None:
    files: set[str] = set()
    with pymtp.Model(n_ctx=512, n_threads=1, draft_max=draft_max) as model, noted(files):
        usual = model.defaults if draft_max == "auto" else pymtp.GenerationParams(draft_max=3)
        params = replace(usual, max_tokens=300, ignore_eos=True)
        "".join(model.generate("Once upon a time", params, temperature=0))
        generation = model.generate("Once upon a time", params, temperature=0)
        next(iter(generation))  # the prompt is done
        files.clear()
        for _ in range(4):
            next(generation)
        seen = set(files)
        generation.close()
    assert {"serving/passes.py", "drafting/policy.py", "engine/session.py", "serving/generation.py"} < seen
    assert seen <= {*named(STEPS), *named(BESIDES)}
    if draft_max != "auto":  # which drafts by heads, by lookup or not at all, whatever pays on this machine
        assert "drafting/mtp.py" in seen
        assert len(seen) <= N_RUN_MAX
