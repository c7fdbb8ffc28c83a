"""llama.cpp's own server tests, and random requests, against `pymtp serve`: minutes each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llama_server_tests import ARCHIVE, FILES, prepare, run, write_shim
from pymtp.embedded import model_path

pytest.importorskip("requests", reason="llama.cpp's server tests need requests")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(not ARCHIVE.is_file(), reason="llama.cpp's sources are not at hand: run make"),
]

TESTS = Path(__file__).parent
PASSES = set((TESTS / "llama_server_passes.txt").read_text("utf-8").split("\n")) - {""}
"""What llama-server of the same build passes with the embedded model."""
DIFFER = {
    line.partition(" # ")[0].strip(): line.partition(" # ")[2]
    for line in (TESTS / "llama_server_differs.txt").read_text("utf-8").splitlines()
}
"""What of it pymtp does not pass, and why."""
NEED_DRAFTS = {f"test_speculative::{name}" for name in ("test_synth_is_deterministic", "test_with_and_without_draft")}


@pytest.mark.parametrize("draft", ["mtp", "none"])
@pytest.mark.parametrize("name", FILES)
def test_what_llama_server_passes_is_passed(name: str, draft: str, tmp_path: Path) -> None:
    tests = prepare(tmp_path)
    found = run(tests, write_shim(tmp_path, None, model_path(), draft), [name])
    expected = {test for test in PASSES if test.startswith(f"test_{name}::")} - DIFFER.keys()
    expected -= NEED_DRAFTS if draft == "none" else set()
    assert expected <= found.keys()
    assert {test: found[test] for test in expected if found[test] != "passed"} == {}


def test_random_requests_leave_no_slot_and_no_memory_behind() -> None:
    subprocess.run([sys.executable, TESTS / "server_soak.py", "--seconds", "120"], check=True)
