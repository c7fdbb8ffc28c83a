"""Devices of other machines, which RPC servers lend, and lending one's own.

Owns connections. Knows nothing of models.
"""

import os
from collections.abc import Sequence
from typing import Any

from pymtp.binding.library import check, ffi, lib, made


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


def serve_devices(endpoint: str, devices: Sequence[Any], n_threads: int, cache: os.PathLike[str] | None = None) -> None:
    """Lend devices to one client at a time, until the process ends.

    `cache`: a folder that keeps large weights, so that they need not be sent again. Raises BackendError if it cannot
    listen at `endpoint`, address:port.
    """
    handles = ffi.new("ggml_backend_dev_t[]", list(devices))
    folder = ffi.NULL if cache is None else ffi.new("char[]", os.fsencode(cache))
    check(lib.pymtp_rpc_serve(endpoint.encode(), folder, n_threads, len(handles), handles))
