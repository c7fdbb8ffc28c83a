"""A measured process: its log, its peak memory, and ending it.

Knows nothing about what it computes.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import sleep

from . import gpu
from .case import Memory, ProgramFailed

POLL_S = 0.02
END_S = 10
"""How long a process may take to end before it is killed."""


class Process:
    """A child process. Its stderr goes to `log`, its stdout to a file next to it.

    It starts in `folder`. `talks`: stdin and stdout are pipes. Raises ProgramFailed if it cannot be run.
    """

    def __init__(
        self,
        command: Sequence[object],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        folder: Path | None = None,
        talks: bool = False,
    ) -> None:
        self.name = log.stem
        self._log = log
        self._output = log.with_suffix(".out")
        self._peak_bytes: int | None = None
        with log.open("wb") as errors, self._output.open("wb") as output:
            try:
                self._child = subprocess.Popen(
                    [str(part) for part in command],
                    stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if talks else output,
                    stderr=errors,
                    env=environment,
                    cwd=folder,
                )
            except OSError as error:
                raise ProgramFailed(f"{self.name}: cannot run {command[0]}: {error.strerror}") from error

    def ask(self, line: str) -> str:
        """Write a line to its stdin, and return the next line of its stdout. Raises ProgramFailed if it ends."""
        assert self._child.stdin and self._child.stdout
        try:
            self._child.stdin.write(line.encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and so has its output
        reply: bytes = self._child.stdout.readline()
        if not reply.endswith(b"\n"):
            raise self.failure("it ended")
        return reply.decode()

    def check(self) -> None:
        """Raises ProgramFailed if it has ended."""
        if self._child.poll() is not None:
            raise self.failure(f"it ended with status {self._child.returncode}")

    def finish(self, timeout_s: float) -> str:
        """Wait for its end; return its stdout. Raises ProgramFailed if it fails or takes longer."""
        for _ in range(int(timeout_s / POLL_S)):
            self._note_memory()
            if self._child.poll() is not None:
                break
            sleep(POLL_S)
        else:
            self.close()
            raise self.failure(f"it took more than {timeout_s:.0f} s")
        if self._child.returncode != 0:
            raise self.failure(f"it ended with status {self._child.returncode}")
        return self._output.read_text("utf-8", "replace")

    def log(self) -> str:
        """Its stderr so far."""
        return self._log.read_text("utf-8", "replace")

    def failure(self, reason: str) -> ProgramFailed:
        """An error that names the program and its log, and quotes the log's last line."""
        last = (self.log().strip().splitlines() or ["(empty)"])[-1].strip()
        return ProgramFailed(f"{self.name}: {reason}; the last line of {self._log}: {last}")

    def memory(self) -> Memory:
        """Its peak resident memory so far, and its memory on GPUs now, which never shrinks."""
        self._note_memory()
        return Memory(self._peak_bytes, gpu.used_bytes(self._child.pid))

    def close(self) -> None:
        """End the process."""
        self._child.terminate()
        try:
            self._child.wait(END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe:
                pipe.close()

    def _note_memory(self) -> None:
        try:
            status = Path(f"/proc/{self._child.pid}/status").read_text("utf-8")
        except OSError:  # not Linux, or it has ended
            return
        if peak := re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE):
            self._peak_bytes = int(peak[1]) * 1024
