"""The devices that llama.cpp can compute on: their names, kinds and memory; of other machines those that RPC servers
lend, and how this one lends its own.

Owns connections to RPC servers. Knows nothing of models.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pymtp.binding.library import check, ffi, lib, library_file, made, text_of
from pymtp.errors import InvalidParameter

_KINDS = ("CPU", "GPU", "IGPU", "ACCEL", "META")  # ggml_backend_dev_type
_NEEDED = {
    "CUDA": "NVIDIA's driver, and pip install 'pymtp-gguf[cuda]' or the CUDA toolkit",
    "Vulkan": "the card's driver, and Vulkan's loader (Debian, Ubuntu: apt install libvulkan1)",
}
"""What backends that are files of their own need, as in wheels for GPUs."""


class Device(NamedTuple):
    """A device that llama.cpp can compute on."""

    name: str
    kind: str
    """CPU, GPU, IGPU (shares the host's memory), ACCEL (helps the CPU) or META."""
    backend: str
    description: str
    free_bytes: int
    total_bytes: int


class RpcLink:
    """A connection to an RPC server, which serves nobody else as long as it is open."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint`: host:port. Raises RemoteError if no server of this build answers there."""
        self._link = made("rpc", lib.pymtp_rpc_connect, endpoint.encode(errors="replace"))
        self.devices: list[Any] = []
        """llama.cpp's handles of the server's devices."""
        while (device := lib.pymtp_rpc_device(self._link, len(self.devices))) != ffi.NULL:
            self.devices.append(device)

    def close(self) -> None:
        """Hand the server back, unless something is loaded there."""
        ffi.release(self._link)


def devices(rpc: Sequence[str] = ()) -> list[Device]:
    """All devices, those of RPC servers (host:port) first. Raises RemoteError for a server that cannot be used."""
    found: list[Device] = []
    for endpoint in rpc:
        with closing(RpcLink(endpoint)) as link:
            found += [describe(each) for each in link.devices]
    return found + [describe(each) for each in _natives()]


def left_out() -> Iterator[str]:
    """The backends that are here but cannot be loaded: a line for each, which says why and names the fix."""
    from ctypes import CDLL

    for name, needed in _NEEDED.items():
        for file in library_file().parent.glob(f"*ggml-{name.lower()}.*"):
            try:
                CDLL(str(file))
            except OSError as error:
                yield f"{name} is left out ({error}): it needs {needed}"


def describe(device: Any) -> Device:
    """What llama.cpp says of a device. Raises RemoteError for one that is lost."""
    backend = lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(device))
    description = text_of(lib.ggml_backend_dev_description(device))
    return Device(_name(device), _kind(device), text_of(backend), description, *_memory(device))


def find_devices(names: Sequence[str] | None, remote: Sequence[Any] = ()) -> list[Any]:
    """llama.cpp's handles of the named devices that layers can be put on; None: all remote ones and all GPUs.

    Raises InvalidParameter for a name that there is not.
    """
    natives = [*remote, *_natives()]
    if names is None:
        gpus = [each for each in natives if _kind(each) == "GPU"]
        return gpus if len(gpus) > len(remote) else gpus + [each for each in natives if _kind(each) == "IGPU"]
    by_name = {_name(each): each for each in natives if _kind(each) != "CPU"}
    if unknown := [name for name in names if name not in by_name]:
        known = ", ".join(by_name) or "there is none but the CPU"
        raise InvalidParameter("device", f"none, or names of devices ({known})", value=unknown[0])
    return [by_name[name] for name in names]


def serve_devices(endpoint: str, devices: Sequence[Any], n_threads: int, cache: os.PathLike[str] | None = None) -> None:
    """Lend devices to one client at a time, until the process ends.

    `cache`: a folder that keeps large weights, so that they need not be sent again. Raises BackendError if it cannot
    listen at `endpoint`, address:port.
    """
    handles = ffi.new("ggml_backend_dev_t[]", list(devices))
    folder = ffi.NULL if cache is None else ffi.new("char[]", os.fsencode(cache))
    check(lib.pymtp_rpc_serve(endpoint.encode(), folder, n_threads, len(handles), handles))


def cpu_features() -> str:
    """What llama.cpp's backends were built with: NAME = 1 for each, of the CPU its instructions."""
    return text_of(lib.llama_print_system_info()).strip(" |")


def host_device() -> Any:
    return next(each for each in _natives() if _kind(each) == "CPU")


def host_free_bytes() -> int:
    """Bytes that the host has available, within the limit of a container; what files fill is available."""
    import psutil  # takes as long as loading a small model

    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # Linux without control groups, or without a limit ("max")
        group = Path("/sys/fs/cgroup") / Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        files = re.findall(r"^(?:in)?active_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
        free = min(free, limit - used + sum(map(int, files)))
    return free


def buffer_types(remote: Sequence[Any] = ()) -> dict[str, Any]:
    """llama.cpp's buffer types of all devices, by name: where a tensor can be put."""
    types = [buffer_type_of(each) for each in [*remote, *_natives()]]
    return {text_of(lib.ggml_backend_buft_name(each)): each for each in types if each != ffi.NULL}


def buffer_type_of(device: Any) -> Any:
    """Where a device keeps tensors, as llama.cpp's handle. Raises RemoteError for a device that is lost."""
    found = ffi.new("ggml_backend_buffer_type_t *")
    check(lib.pymtp_device_buffer_type(device, found))
    return found[0]


def _natives() -> list[Any]:
    lib.llama_backend_init()
    return [lib.ggml_backend_dev_get(i) for i in range(lib.ggml_backend_dev_count())]


def _name(device: Any) -> str:
    return text_of(lib.ggml_backend_dev_name(device))


def _kind(device: Any) -> str:
    return _KINDS[int(lib.ggml_backend_dev_type(device))]


def _memory(device: Any) -> tuple[int, int]:
    n_free, n_total = ffi.new("size_t *"), ffi.new("size_t *")
    check(lib.pymtp_device_memory(device, n_free, n_total))
    return n_free[0], n_total[0]
