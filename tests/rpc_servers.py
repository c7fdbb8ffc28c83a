"""RPC servers of this machine, as processes of their own: for tests."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

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


def start_rpc_server(port: int | None = None, python: str | Path = sys.executable, cwd: str | None = None) -> RpcServer:
    """A server on one thread, of the pymtp that this Python finds, once it listens."""
    port = port or free_port()
    command = [str(python), "-m", "pymtp_cli", "rpc-server", "-p", str(port), "-t", "1", "-dev", "none"]
    server = RpcServer(port, subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    end = time.monotonic() + SOON_S
    while not _listens(port):
        assert server.process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    return server


def _listens(port: int) -> bool:
    # without a connection, of which the server takes one at a time
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


@contextmanager
def rpc_servers(n: int) -> Iterator[list[RpcServer]]:
    """`n` servers, which end with the block."""
    with ExitStack() as stack:
        servers = []
        for _ in range(n):
            server = start_rpc_server()
            stack.callback(server.kill)
            servers.append(server)
        yield servers
