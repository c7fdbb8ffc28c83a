"""A program in a terminal of its own: what it shows, and keys to press."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from types import TracebackType

TIMEOUT_S = 120


class Terminal:
    """Context manager. Runs `command` with the terminal as its stdin, stdout and stderr, and as its controlling one."""

    def __init__(self, command: list[str], *, columns: int = 80, env: dict[str, str] | None = None) -> None:
        self._controller, terminal = pty.openpty()
        self.resize(columns)
        self.seen = ""
        """All that it has shown, escape sequences included."""
        self._bytes = b""
        environment = {**(os.environ if env is None else env), "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environment,
            preexec_fn=lambda: take_terminal(terminal),
        )
        os.close(terminal)

    def resize(self, columns: int, rows: int = 24) -> None:
        """Give it another size; the program is told by the system."""
        fcntl.ioctl(self._controller, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        """Type `keys`."""
        os.write(self._controller, keys.encode())

    def forget(self) -> None:
        """Begin with an empty `seen` again."""
        self.seen, self._bytes = "", b""

    def wait_for(self, text: str, *, after: int = 0) -> int:
        """Read until `text` was shown after position `after` of `seen`; return the position after it."""
        deadline = time.monotonic() + TIMEOUT_S
        while (at := self.seen.find(text, after)) < 0:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen[after:]!r}"
            assert self._read(), f"it ended without {text!r}: {self.seen[after:]!r}"
        return at + len(text)

    def wait_for_more(self, n: int, *, after: int) -> None:
        """Read until `n` characters were shown after position `after` of `seen`."""
        while len(self.seen) < after + n:
            assert self._read(), f"only {self.seen[after:]!r}"

    def wait(self) -> int:
        """Read to the end; return the exit code."""
        while self._read():
            pass
        return self.process.wait(TIMEOUT_S)

    def hang_up(self) -> None:
        """Close the terminal, as closing its window does."""
        os.close(self._controller)
        self._controller = -1

    def _read(self) -> bool:
        ready, _, _ = select.select([self._controller], [], [], TIMEOUT_S)
        if not ready:
            return False
        try:
            data = os.read(self._controller, 65536)
        except OSError:  # nobody has it open any more
            return False
        self._bytes += data
        self.seen = self._bytes.decode(errors="replace")
        return bool(data)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT_S)
        if self._controller >= 0:
            os.close(self._controller)


def take_terminal(terminal: int) -> None:
    """Make `terminal` the controlling one: Ctrl-C becomes a signal only for its foreground group."""
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
