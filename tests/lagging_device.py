"""The device of native/tests/lagging-device.cpp, which is as late as a GPU may be.

As a plugin it becomes the GPU of a test run: `PYTHONPATH=tests pytest -p lagging_device tests/test_isolation.py`.
As a program it computes rounds of tests/test_isolation.py there, in every kind of memory, and prints their digests; its
arguments are the split mode, whether flash attention is on, and of how many families it takes one.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import llama_cpp  # noqa: F401  # takes llama.cpp's log, so before pymtp, which takes it over

from native_program import REPOSITORY, SOURCES, compile_native
from pymtp.binding.library import library_file
from pymtp.loading.params import SplitMode

SOURCE = SOURCES / "lagging-device.cpp"
BUILD = REPOSITORY / "build"
DEVICE = (BUILD if os.access(BUILD, os.W_OK) else Path(gettempdir())) / "lagging-device.so"
SPLIT_FAMILIES = ["plain", "sliding window, 3 heads", "hybrid"]
"""Of which tensors can be split."""


def build() -> Path:
    """The device as a library, for the pymtp that is installed here."""
    newest = max(path.stat().st_mtime for path in (SOURCE, library_file()))
    if not DEVICE.exists() or DEVICE.stat().st_mtime < newest:
        made = DEVICE.with_suffix(f".{os.getpid()}.so")  # several processes may build it at the same time
        compile_native(SOURCE, made, "-shared", "-fPIC")
        made.replace(DEVICE)
    return DEVICE


def load() -> None:
    """From here on this process has the device."""
    ggml = ctypes.CDLL(str(library_file().parent / "libpymtp-ggml.so"))
    ggml.ggml_backend_load.restype = ctypes.c_void_p
    assert ggml.ggml_backend_load(os.fsencode(build()))


def digests(split_mode: SplitMode, flash_attn: str, every: str) -> Iterator[str]:
    """Of what is computed in the places of two sequences that held others, for each family."""
    import test_isolation
    from pymtp.gguf.facts import model_facts
    from pymtp.loader import Weights
    from pymtp.loading.params import ModelParams
    from pymtp.placement.devices import devices

    assert "Lagging0" in [device.name for device in devices()]
    params = ModelParams(split_mode=split_mode)
    for family, write in list(test_isolation.FAMILIES.items())[:: int(every)]:
        if split_mode == "tensor" and family not in SPLIT_FAMILIES:
            continue
        with TemporaryDirectory() as folder:
            facts = model_facts(write(Path(folder) / "tiny.gguf"))
            with closing(Weights(facts, params, with_heads=True)) as weights:
                made = test_isolation.session(weights, flash_attn=flash_attn)
                outputs = test_isolation.left_behind(made, test_isolation.SECRETS[0], test_isolation._truncate)
        yield f"{family}: {sha256(b''.join(array.tobytes() for array in outputs)).hexdigest()}"


load()
if __name__ == "__main__":
    for line in digests(*sys.argv[1:]):  # type: ignore[arg-type]
        print(line)
