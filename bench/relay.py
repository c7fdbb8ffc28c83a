"""Passes on TCP connections, later: python bench/relay.py ADDRESS:PORT TO_ADDRESS:TO_PORT [--ms 0].

For kernels without netem. What comes in goes out after the delay, in both directions, so that a round trip takes twice
the delay longer. A number on stdin is a new delay in ms, from then on.
"""

from __future__ import annotations

import argparse
import queue
import socket
import sys
import threading
import time


class Relay:
    """Accepts connections in threads of its own until `close`."""

    def __init__(self, listen: tuple[str, int], to: tuple[str, int], delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self._to = to
        self._listener = socket.create_server(listen)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._to)
            except OSError:
                client.close()
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pass_on(client, server, from_client=True)
            self._pass_on(server, client, from_client=False)

    def note(self, data: bytes, *, from_client: bool) -> None:
        """What comes in, before it goes out: for subclasses."""

    def _pass_on(self, source: socket.socket, sink: socket.socket, *, from_client: bool) -> None:
        parts: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

        def receive() -> None:
            data = b"?"
            while data:
                try:
                    data = source.recv(1 << 16)
                except OSError:
                    data = b""
                self.note(data, from_client=from_client)
                parts.put((time.monotonic() + self.delay_s, data))

        def send() -> None:
            while True:
                due, data = parts.get()
                time.sleep(max(due - time.monotonic(), 0))
                try:
                    if not data:
                        sink.shutdown(socket.SHUT_WR)
                        return
                    sink.sendall(data)
                except OSError:
                    source.close()
                    return

        for work in (receive, send):
            threading.Thread(target=work, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("listen", type=_address, metavar="ADDRESS:PORT")
    parser.add_argument("to", type=_address, metavar="TO_ADDRESS:TO_PORT")
    parser.add_argument("--ms", type=float, default=0.0)
    given = parser.parse_args()
    relay = Relay(given.listen, given.to, given.ms / 1000)
    for line in sys.stdin:
        relay.delay_s = float(line) / 1000


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    main()
