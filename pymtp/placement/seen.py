"""Devices are checked once: before the first load to one that no load of this build has seen.

Owns the file of what was found, and turns pymtp's kernels off on a device that computes wrong with them, but not with
llama.cpp's. Knows no model.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pymtp.binding.library import PIN, SERIES, lib
from pymtp.binding.status import check
from pymtp.engine import snapshot
from pymtp.errors import BackendError, StateError
from pymtp.placement.devices import cpu_features, describe
from pymtp.placement.operations import check_operations

_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version"))


class Found(NamedTuple):
    """Operations that a device computes wrong."""

    own: tuple[str, ...] = ()
    """With pymtp's kernels."""
    plain: tuple[str, ...] = ()
    """With llama.cpp's alone; looked at where `own` are wrong."""

    @property
    def is_better_without(self) -> bool:
        return len(self.plain) < len(self.own)


def check_seen(devices: Sequence[Any], file: Path | None = None) -> None:
    """Check devices, unless that was done before, and warn of what is wrong. `devices`: llama.cpp's handles.

    `file`: where it is remembered; None: in the user's folder for caches.
    """
    file = file or _file()
    known = _read(file)
    for device in devices:
        name, key = describe(device).name, _key(device)
        if key not in known:
            try:
                known[key] = _check(device)
            except BackendError:  # no memory now: the next load tries again
                continue
            _write(file, known)
        found = known[key]
        _allow(device, allowed=not found.is_better_without)
        if found.own:
            where = "pymtp's kernels are off there" if found.is_better_without else "llama.cpp's own kernels do, too"
            text = f"{name} computes {', '.join(found.own)} wrong: {where}; please report it (pymtp doctor)"
            warnings.warn(text, stacklevel=3)


def _check(device: Any) -> Found:
    _allow(device, allowed=True)
    if not (own := _wrong(device)):
        return Found()
    _allow(device, allowed=False)
    return Found(own, _wrong(device))


def _wrong(device: Any) -> tuple[str, ...]:
    return tuple(each.name for each in check_operations(device) if not each.is_right)


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


def _read(file: Path) -> dict[str, Found]:
    """What is remembered; nothing where the file cannot be read, or is not one of ours."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        return {str(key): Found(*map(tuple, found)) for key, found in json.loads(file.read_text("utf-8")).items()}
    return {}


def _write(file: Path, known: dict[str, Found]) -> None:
    """Remember; where nothing can be written, the next process checks again."""
    with suppress(OSError, StateError):
        file.parent.mkdir(parents=True, exist_ok=True)
        snapshot.write(file, json.dumps(known, indent=1).encode())
