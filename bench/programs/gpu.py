"""What nvidia-smi says; nothing where there is none."""

from __future__ import annotations

import re
import shutil
import subprocess


def names() -> list[str]:
    """Of the GPUs."""
    return _query("--query-gpu=name").splitlines()


def used_bytes(pid: int) -> int | None:
    """What a process has on all GPUs; None if that is unknown."""
    used = re.findall(rf"^{pid}, (\d+)$", _query("--query-compute-apps=pid,used_memory"), re.MULTILINE)
    return sum(int(mib) * 2**20 for mib in used) if used else None


def _query(what: str) -> str:
    if not shutil.which("nvidia-smi"):
        return ""
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True).stdout
