"""Runs a server until it is told to stop: its sockets, files and memory, its signals, its end.

Knows uvicorn; nothing of what the application does.
"""

import ctypes
import os
import signal
import socket
import ssl
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import EADDRINUSE, ECONNREFUSED
from pathlib import Path

import uvicorn

from pymtp.errors import InvalidParameter, require
from pymtp.model import Model

from . import logs
from .app import make_app
from .protocol import Connection
from .served_model import ServedModel
from .settings import ServerSettings

LARGE = 128 << 10
"""Bytes of a block from which on it is the system's own: glibc's default, before it adapts."""
_M_MMAP_THRESHOLD = -3  # malloc.h


def serve(
    load: Callable[[], Model],
    settings: ServerSettings,
    hosts: Sequence[str],
    port: int,
    ssl_cert: Path | None,
    ssl_key: Path | None,
) -> None:
    """Serve until SIGTERM or Ctrl-C. What has begun is completed first; a second signal ends it at once.

    Raises InvalidParameter for an address or a certificate that cannot be used, and what `load` raises.
    """
    _check_certificate(ssl_cert, ssl_key)
    return_large_blocks()
    _allow_many_files()
    sockets = [bound(host, port) for host in hosts]
    served = ServedModel(load, settings, on_failure=lambda: setattr(server, "should_exit", True))
    config = uvicorn.Config(
        make_app(served),
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        ssl_certfile=ssl_cert,
        ssl_keyfile=ssl_key,
    )
    server = _Server(config)
    for host, each in zip(hosts, sockets, strict=True):
        name = f"[{host}]" if ":" in host else host
        if is_path(host):
            logs.log("listening", socket=host, api=f"{settings.api_prefix}/v1")
            continue
        url = f"http{'s' * (ssl_cert is not None)}://{name}:{each.getsockname()[1]}{settings.api_prefix}"
        logs.log("listening", **{"page": f"{url}/"} if settings.has_page else {}, api=f"{url}/v1")
    try:
        server.run(sockets=sockets)
    finally:
        for host in filter(is_path, hosts):
            with suppress(OSError):
                os.unlink(host)
    if served.error is not None:
        raise served.error


def return_large_blocks() -> None:
    """Have freed blocks of LARGE bytes and more returned to the system. Does nothing where there is no glibc.

    Else glibc raises that limit to what was freed, up to 32 MiB, and keeps such blocks. Those of graphs, which come and
    go, then leave gaps between what lives longer: after some thousand requests a server holds twice what it uses.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        mallopt(_M_MMAP_THRESHOLD, LARGE)


def _allow_many_files() -> None:
    """Allow as many open files as the system does: each connection is one. Often 1,024 are, until one asks."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    for n in (most, 65536, 10240):  # macOS says that there is no limit, and has one
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (n, most))
            return


def _check_certificate(cert: Path | None, key: Path | None) -> None:
    if cert is None:
        require(key is None, "ssl_cert_file", "given where ssl_key_file is")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=lambda: "")  # nobody is asked for a password
    except OSError as error:  # SSLError among them
        allowed = f"a certificate in PEM, with its key in ssl_key_file ({error.strerror or error})"
        raise InvalidParameter("ssl_cert_file", allowed) from None


class _Server(uvicorn.Server):
    """Ends on a signal with its work done, and with status 0: uvicorn's own handler lets it end the process then."""

    def handle_exit(self, sig: int, frame: object) -> None:
        logs.log("stopping", signal=signal.Signals(sig).name)
        self.force_exit = self.should_exit
        self.should_exit = True


def is_path(host: str) -> bool:
    """Whether it is the path of a socket, which ends in .sock, as for llama-server."""
    return hasattr(socket, "AF_UNIX") and host.endswith(".sock")


def bound(host: str, port: int) -> socket.socket:
    """A socket at the address, which listens. Raises InvalidParameter."""
    where, name = (host, "host") if is_path(host) else (f"{host}:{port}", "port")
    try:
        if is_path(host):
            return _at_path(host)
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except OSError as error:
        reason = error.strerror or error
        if error.errno == EADDRINUSE:
            raise InvalidParameter(name, f"one that is free: {where} is in use") from None
        raise InvalidParameter("host", f"an address of this machine: {where} cannot be used ({reason})") from None


def _at_path(path: str) -> socket.socket:
    """A socket that listens at a path, in the place of one whose server was killed."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as other:
        if other.connect_ex(path) == ECONNREFUSED and stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    made = socket.socket(socket.AF_UNIX)
    made.bind(path)
    made.listen()
    return made
