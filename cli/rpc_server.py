"""`pymtp rpc-server`: lends this machine's devices to pymtp on another one."""

from platformdirs import user_cache_path

import pymtp
from pymtp.engine.cores import n_cores
from pymtp.placement.devices import find_devices, host_device, serve_devices
from pymtp.text.files import make_own_folder

from .flags import Values
from .interrupt import end_at_next
from .output import print_note


def rpc_server(own: Values) -> None:
    devices = find_devices(own.device) or [host_device()]
    address = f"{own.host}:{own.port}"
    print_note(f"no authentication: whoever reaches {address} may use it; keep it on a private network")
    pymtp.set_log_level("warn")
    end_at_next()  # Python would see Ctrl-C after the server, which never ends
    cache = user_cache_path("pymtp", appauthor=False) / "rpc" if own.cache else None
    if cache:
        make_own_folder(cache, "cache")
    serve_devices(address, devices, own.n_threads or n_cores(), cache)
