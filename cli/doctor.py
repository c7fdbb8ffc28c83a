"""`pymtp doctor`: what a report of a problem has to say of a machine, and whether pymtp computes rightly on it."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer
from huggingface_hub.constants import HF_HUB_CACHE

import pymtp
from pymtp.benchmark.provenance import cpu
from pymtp.embedded import model_path
from pymtp.engine.cores import n_cores
from pymtp.placement.devices import cpu_features, describe, devices, find_devices, host_device, left_out
from pymtp.placement.operations import check_operations

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
    """Name, result and whether it is right, of each device and of the embedded model."""
    for device in [host_device(), *find_devices(None)]:
        name, operations = describe(device).name, check_operations(device)
        worst = max((each.error for each in operations), default=0.0)
        text = f"{len(operations)} operations are right, to {worst:.1e} of the largest value"
        if wrong := [f"{each.name} (off by {each.error:.1e})" for each in operations if not each.is_right]:
            text = f"WRONG: {', '.join(wrong)}; please report it"
        elif mixed := [each.name for each in operations if each.company > 0]:
            text += f"; rows depend on how many there are: {', '.join(mixed)}"
        yield name, text, not wrong
    yield "drafts", *_drafts()


def _drafts() -> tuple[str, bool]:
    params = pymtp.GenerationParams(pymtp.SamplingParams(temperature=0), max_tokens=32, ignore_eos=True)
    texts = []
    for drafts in ({"draft": "none"}, {"draft_max": 3}):
        with pymtp.Model(model_path(), n_ctx=512, n_gpu_layers=0, **drafts) as model:
            texts.append("".join(model.generate("def is_prime(n):", params)))
    is_right = texts[0] == texts[1]
    return "the embedded model's text is the same with them" if is_right else "WRONG: they change a text", is_right
