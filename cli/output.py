"""stdout for data (UTF-8 whatever the locale, flushed, with clear errors), stderr for chatter; and what ends a command.

Owns writing to both, and the errors that the command line itself finds, before or after pymtp is called: app.py turns
them into exit codes. Knows nothing about what is written.
"""

import os
import sys
from contextlib import suppress
from typing import TextIO

import typer

import pymtp

from .text import harmless


class CommandError(Exception):
    """Input or output cannot be used. The message is one line that names the fix."""


class OutputClosed(Exception):
    """The reader of stdout has closed it, as `head` does. Not an error: it has read enough."""


def print_stderr(text: str, *, ends_line: bool = True) -> None:
    """Write a line, or the beginning of one, to stderr; errors are ignored."""
    with suppress(OSError, ValueError):
        typer.echo(text, err=True, nl=ends_line)


def print_note(text: object) -> None:
    """Write a line of pymtp's own to stderr; what it quotes cannot control the terminal."""
    print_stderr(f"pymtp: {harmless(str(text))}")


def can_redraw(stream: TextIO | None) -> bool:
    """Whether `stream` is a terminal that can change a line that it has shown: TERM=dumb cannot."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def shows_color(stream: TextIO | None) -> bool:
    """Whether `stream` is a terminal that wants colours: NO_COLOR and TERM=dumb mean no escape sequences."""
    return can_redraw(stream) and not os.environ.get("NO_COLOR")


class Output:
    """Writes text to stdout. Create it before loading a model, so that a closed stdout shows early."""

    def __init__(self) -> None:
        if sys.stdout is None:
            raise CommandError("stdout is closed; redirect it to a file or to /dev/null")
        self._stream = sys.stdout.buffer

    def write(self, text: str) -> None:
        """Write `text` and flush it. Raises OutputClosed, or CommandError when it cannot be written."""
        try:
            self._stream.write(text.encode("utf-8", errors="replace"))
            self._stream.flush()
        except OSError as error:
            # what could not be written stays in the buffer, on which the interpreter would fail again at exit
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
            if isinstance(error, BrokenPipeError):
                raise OutputClosed from None
            raise CommandError(f"cannot write to stdout: {error.strerror}; check where it is redirected to") from error


def device_text(device: "pymtp.Device") -> str:
    """A device, as --list-devices and doctor show it."""
    memory = f"{device.total_bytes >> 20} MiB, {device.free_bytes >> 20} MiB free"
    return f"{device.name}: {device.description} ({device.kind}, {memory})"


def show_devices(ctx: typer.Context, wanted: bool) -> bool:
    """What --list-devices does."""
    if wanted:
        output = Output()
        found = (f"  {device_text(device)}\n" for device in pymtp.devices(ctx.params.get("rpc") or ()))
        output.write("".join(["Available devices:\n", *found]))
        from pymtp.placement.devices import left_out  # loads the native library

        for line in left_out():
            print_note(line)
        raise typer.Exit
    return wanted
