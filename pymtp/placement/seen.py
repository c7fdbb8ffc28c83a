"""Devices are checked once: before the first load to one that no load of this build has seen.

Owns the file of what was found, and turns off pymtp's kernels where they are wrong. Knows no model.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from pymtp.binding.library import PIN, SERIES, lib
from pymtp.binding.status import check
from pymtp.engine import snapshot
from pymtp.errors import BackendError, StateError
from pymtp.placement.devices import cpu_features, describe
from pymtp.placement.operations import check_operations

_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))


def check_seen(devices: Sequence[Any], file: Path | None = None) -> None:
    """Check devices, unless that was done before, and warn of what is wrong. `devices`: llama.cpp's handles.

    `file`: where it is remembered; None: in the user's folder for caches.
    """
    file = file or _file()
    known = _read(file)
    for device in devices:
        name, key = describe(device).name, _key(device)
        if key not in known:
            _allow(device, allowed=True)
            try:
                known[key] = [each.name for each in check_operations(device) if not each.is_right]
            except BackendError:  # no memory now: the next load tries again
                continue
            _write(file, known)
        wrong = known[key]
        _allow(device, allowed=not wrong)
        if wrong:
            off = "pymtp's kernels are off there; please report it (pymtp doctor)"
            warnings.warn(f"{name} computes {', '.join(wrong)} wrong: {off}", stacklevel=3)


def _allow(device: Any, *, allowed: bool) -> None:
    check(lib.pymtp_allow_kernels(device, allowed))


def _key(device: Any) -> str:
    """What has to be the same for a device to compute the same."""
    found = describe(device)
    drivers = [" ".join(path.read_text("utf-8", "replace").split()) for path in _DRIVERS if path.is_file()]
    return " | ".join([found.backend, found.description, cpu_features(), PIN, SERIES, *drivers])


def _file() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("pymtp", appauthor=False) / "devices.json"


def _read(file: Path) -> dict[str, list[str]]:
    """What is remembered: operations that devices compute wrong. Nothing where the file is not one of ours."""
    with suppress(OSError, ValueError):
        return msgspec.json.decode(file.read_bytes(), type=dict[str, list[str]])
    return {}


def _write(file: Path, known: dict[str, list[str]]) -> None:
    """Remember; where nothing can be written, the next process checks again."""
    with suppress(OSError, StateError):
        file.parent.mkdir(parents=True, exist_ok=True)
        snapshot.write(file, msgspec.json.encode(known))
