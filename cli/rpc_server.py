"""`pymtp rpc-server`: lends this machine's devices to pymtp on another one.

Owns flags of llama.cpp's rpc-server.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from . import options as opt
from .output import print_stderr
from .parsers import integer
from .placement import Devices

EXAMPLES = """
pymtp rpc-server
pymtp rpc-server --host 192.168.1.5 --port 50052 -c
pymtp run model.gguf --rpc 192.168.1.5:50052 "..."
"""


def rpc_server(
    host: Annotated[
        str, typer.Option("-H", "--host", metavar="ADDRESS", help="IPv4 address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("-p", "--port", parser=integer(1, 65535), metavar="N", help="Port to listen on.")
    ] = 50052,
    device: Devices = None,
    n_threads: opt.Threads = None,
    cache: Annotated[
        bool, typer.Option("-c", "--cache", help="Keep large weights in a folder, so that they are sent once.")
    ] = False,
    debug: opt.Debug = False,
) -> None:
    """Lend devices to pymtp on another machine (run ... --rpc HOST:PORT), one client at a time.

    Both machines need the same build. The protocol has no authentication: it belongs on a private network.
    """
    import pymtp
    from pymtp.engine.cores import n_cores
    from pymtp.loading.rpc import serve_devices
    from pymtp.placement.devices import find_devices, host_device

    devices = find_devices(device) or [host_device()]
    print_stderr(f"pymtp: no authentication: whoever reaches {host}:{port} may use it; keep it on a private network")
    pymtp.set_log_level("warn")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would see it after the server, which never ends
    serve_devices(f"{host}:{port}", devices, n_threads or n_cores(), _cache() if cache else None)


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pymtp" / "rpc"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
