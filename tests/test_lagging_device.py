"""Results do not depend on how late a GPU is, nor on what its memory held before.

Computed on a device that does what CUDA's backend does as late as CUDA allows it, see tests/lagging_device.py.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
HEADERS = HERE.parent / "build" / "editable" / "llama.cpp"

pytestmark = pytest.mark.skipif(not HEADERS.is_dir(), reason=f"{HEADERS} is not there to compile with: run make")


def digests(split_mode: str, flash_attn: str, **mode: str) -> list[str]:
    """Of passes and rounds in every kind of memory, computed in a process that has the device."""
    environment = {**os.environ, "PYTHONPATH": str(HERE), **mode}
    command = [sys.executable, str(HERE / "lagging_device.py"), split_mode, flash_attn]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()


@functools.cache
def expected(flash_attn: str) -> list[str]:
    """Where the device is never late."""
    found = digests("none", flash_attn, LAGGING_DEVICE="at-once")
    assert len(found) == len(set(found)) > 10
    return found


@pytest.mark.parametrize(
    ("flash_attn", "fill"),
    [
        ("on", "nan"),
        *(pytest.param(*mode, marks=pytest.mark.slow) for mode in (("on", "1"), ("off", "1"), ("off", "nan"))),
    ],
)
def test_results_do_not_depend_on_how_late_a_device_is(flash_attn: str, fill: str) -> None:
    assert digests("none", flash_attn, LAGGING_DEVICE_FILL=fill) == expected(flash_attn)


@pytest.mark.slow
def test_sums_of_two_devices_do_not_depend_on_how_late_they_are() -> None:
    at_once, late = (digests("tensor", "on", LAGGING_DEVICES="2", LAGGING_DEVICE=mode) for mode in ("at-once", "late"))
    assert len(at_once) == 3
    assert late == at_once
