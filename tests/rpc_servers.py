"""RPC servers of this machine, as processes of their own: for tests."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from http_server import free_port

SOON_S = 60


@dataclass
class RpcServer:
    """A server that listens."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        """As kill -9 does."""
        self.process.kill()
        self.process.wait()


def start_rpc_server(
    port: int | None = None,
    python: str | Path = sys.executable,
    cwd: str | None = None,
    first: str = "",
    device: str = "none",
) -> RpcServer:
    """A server on one thread, of the pymtp that this Python finds, once it listens.

    It lends `device`, by default the CPU; if `first` is a statement that is run first, the GPU that comes with that.
    """
    end = time.monotonic() + SOON_S
    while True:
        used = port or free_port()
        start = ["-c", f"{first}; from pymtp_cli.main import main; main()"] if first else ["-m", "pymtp_cli"]
        command = [str(python), *start, "rpc-server", "-p", str(used), "-t", "1", *(() if first else ("-dev", device))]
        process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not _listens(process, used):
            assert time.monotonic() < end
            time.sleep(0.05)
        if process.returncode is None:
            return RpcServer(used, process)
        assert not port, "it ended"  # else another test has taken the port meanwhile


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    # without a connection, of which the server takes one at a time
    with suppress(psutil.NoSuchProcess):
        sockets = psutil.Process(process.pid).net_connections("tcp4")
        return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in sockets)
    return False


@contextmanager
def rpc_servers(n: int, first: str = "", device: str = "none") -> Iterator[list[RpcServer]]:
    """`n` servers, which end with the block."""
    with ExitStack() as stack:
        servers = []
        for _ in range(n):
            server = start_rpc_server(first=first, device=device)
            stack.callback(server.kill)
            servers.append(server)
        yield servers
