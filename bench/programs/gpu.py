"""GPUs and their memory, from nvidia-smi; nothing if it is not installed."""

from __future__ import annotations

import re
import shutil
import subprocess


def names() -> list[str]:
    """The names of the GPUs."""
    return _query("--query-gpu=name").splitlines()


def used_bytes(pid: int) -> int | None:
    """The memory of a process on all GPUs; None if unknown."""
    used = re.findall(rf"^{pid}, (\d+)$", _query("--query-compute-apps=pid,used_memory"), re.MULTILINE)
    return sum(int(mib) * 2**20 for mib in used) if used else None


def _query(what: str) -> str:
    if not shutil.which("nvidia-smi"):
        return ""
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True).stdout
