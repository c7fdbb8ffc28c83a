"""`pymtp rpc-server`: lends this machine's devices to pymtp on another one."""

import os
import signal
from pathlib import Path

import pymtp
from pymtp.engine.cores import n_cores
from pymtp.loading.rpc import serve_devices
from pymtp.placement.devices import find_devices, host_device

from .flags import Values
from .output import CommandError, print_stderr


def rpc_server(own: Values) -> None:
    devices = find_devices(own.device) or [host_device()]
    address = f"{own.host}:{own.port}"
    print_stderr(f"pymtp: no authentication: whoever reaches {address} may use it; keep it on a private network")
    pymtp.set_log_level("warn")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would see it after the server, which never ends
    serve_devices(address, devices, own.n_threads or n_cores(), _cache() if own.cache else None)


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pymtp" / "rpc"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot write {folder}: {error.strerror}; set XDG_CACHE_HOME, or leave -c out") from error
    return folder
