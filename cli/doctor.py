"""`pymtp doctor`: what a report of a problem has to say of a machine, and whether pymtp computes rightly on it."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import typer
from huggingface_hub.constants import HF_HUB_CACHE

import pymtp
from pymtp.benchmark.provenance import cpu
from pymtp.embedded import model_path
from pymtp.engine.cores import n_cores
from pymtp.errors import PymtpError
from pymtp.placement.devices import cpu_features, describe, devices, find_devices, left_out

from .flags import Values
from .output import Output, device_text
from .text import printable, size_text

_PACKAGES = ("gguf", "numpy", "huggingface-hub", "llama-cpp-python")
_READ = ("LLAMA_", "PYMTP_", "GGML_", "CUDA_", "OMP_", "HF_", "XDG_CACHE_HOME")
_SECRET = ("KEY", "TOKEN")


def doctor(own: Values) -> None:
    output, wrong = Output(), []
    for title, lines in (("versions", _versions()), ("machine", _machine()), ("folders", _folders())):
        for line in lines:
            output.write(f"{title:<12}{printable(line)}\n")
            title = ""
    for name, line, is_right in _checks():
        output.write(f"{name:<12}{line}\n")
        wrong += [] if is_right else [name]
    if wrong:
        raise typer.Exit(1)


def _versions() -> Iterator[str]:
    yield pymtp.version_text()
    packages = []
    for name in _PACKAGES:
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            packages.append(f"no {name}")
    yield f"Python {platform.python_version()}; {', '.join(packages)}"
    yield f"{platform.platform()}; {' '.join(platform.libc_ver())}".rstrip("; ")


def _machine() -> Iterator[str]:
    yield f"{cpu()}; {n_cores()} cores for {os.cpu_count()} threads"
    yield cpu_features()
    yield from map(device_text, devices())
    yield from map(_homeless, left_out())
    for name in sorted(os.environ):
        if name.startswith(_READ):
            yield f"{name}={'(set)' if any(word in name for word in _SECRET) else _homeless(os.environ[name])}"


def _folders() -> Iterator[str]:
    folder = Path(HF_HUB_CACHE)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    state = "writable" if os.access(there, os.W_OK) else "not writable: set HF_HOME"
    yield f"models: {_homeless(str(folder))} ({state}, {size_text(shutil.disk_usage(there).free)} free)"


def _homeless(path: str) -> str:
    return path.replace(str(Path.home()), "~") if len(str(Path.home())) > 1 else path


def _checks() -> Iterator[tuple[str, str, bool]]:
    """Name, result and whether it is right, of each device."""
    for name in ["CPU", *(describe(device).name for device in find_devices(None))]:
        try:
            is_right = _text(name, draft="none") == _text(name, draft_max=3)
            text = "the embedded model's text is the same with drafts" if is_right else "WRONG: drafts change a text"
        except PymtpError as error:
            is_right, text = False, f"FAILED: {error}"
        yield name, text if is_right else f"{text}; please report it", is_right


def _text(device: str, **drafts: Any) -> str:
    """What the embedded model says on a device: of the tokens none are nearly tied, which rounding could decide."""
    params = pymtp.GenerationParams(pymtp.SamplingParams(temperature=0), max_tokens=32, ignore_eos=True)
    names = () if device == "CPU" else (device,)
    with pymtp.Model(model_path(), n_ctx=512, device=names, **drafts) as model:
        return "".join(model.generate("1, 2, 3, 4, 5, 6, 7, 8, ", params))
