"""Where messages come from: a terminal with history and completion, or a pipe.

Owns prompt_toolkit. Knows lines; nothing about what they mean.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

from ..output import CommandError, print_stderr

Completions = Mapping[str, set[str] | None]
"""The words that may follow each command; None: files."""


def open_reader(completions: Completions, *, keeps_history: bool = True) -> "Reader":
    """The terminal if stdin is one, else the pipe. Raises CommandError."""
    if sys.stdin is None:
        raise CommandError("stdin is closed: run chat at a terminal, or pipe messages to it")
    if not sys.stdin.isatty():
        return PipeReader(sys.stdin.buffer)
    stream = next((one for one in (sys.stdout, sys.stderr) if one is not None and one.isatty()), None)
    if stream is None or os.environ.get("TERM") == "dumb":
        return PipeReader(sys.stdin.buffer, asks=stream is not None)
    return TerminalReader(completions, stream, keeps_history=keeps_history)


class PipeReader:
    """Each line is a message; a backslash at the end continues it on the next line.

    Empty lines are skipped. `asks`: somebody types, at a terminal that can do no more than show lines.
    """

    def __init__(self, stream: IO[bytes], *, asks: bool = False) -> None:
        self._stream = stream
        self.is_interactive = asks

    def read(self) -> str:
        """The next line that is not empty. Raises EOFError and CommandError."""
        while True:
            if self.is_interactive:
                print_stderr("> ", ends_line=False)
            lines = [self._line()]
            with suppress(EOFError):  # the end also ends a message
                while lines[-1].endswith("\\"):
                    lines[-1] = lines[-1].removesuffix("\\")
                    lines.append(self._line())
            if text := "\n".join(lines).strip():
                return text

    without_echo = nullcontext
    """Does nothing: there is no terminal."""

    def _line(self) -> str:
        line = self._stream.readline()
        if not line:
            raise EOFError
        try:
            return line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise CommandError("stdin is not valid UTF-8; convert it first (iconv -t UTF-8)") from None


class TerminalReader:
    """A prompt with history across runs. Enter sends, Alt-Enter or a backslash before Enter starts a new line."""

    is_interactive = True

    def __init__(self, completions: Completions, stream: Any, *, keeps_history: bool) -> None:
        # asking a terminal for its cursor position takes a second if it does not answer, and is not needed here
        os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output

        self._session = PromptSession[str](
            prompt_continuation="  ",
            multiline=True,
            history=_history() if keeps_history else None,
            completer=_completer(completions),
            complete_while_typing=False,
            key_bindings=_keys(),
            output=create_output(stdout=stream),
        )

    def read(self) -> str:
        """The next message that is not empty. Raises EOFError, and KeyboardInterrupt for Ctrl-C on an empty line."""
        while True:
            if text := self._session.prompt("> ").strip():
                return text

    @contextmanager
    def without_echo(self) -> Iterator[None]:
        """Keys are not echoed except by `read`, which also reads those that were pressed earlier."""
        try:
            import termios
        except ImportError:  # not a Unix terminal
            yield
            return
        stdin = sys.stdin.fileno()
        before = termios.tcgetattr(stdin)
        # prompt_toolkit's own mode, so that it reads Enter as Enter later; Ctrl-C stays a signal
        iflag, lflag = before[0] & ~termios.ICRNL, before[3] & ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(stdin, termios.TCSANOW, [iflag, *before[1:3], lflag, *before[4:]])
        try:
            yield
        finally:
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(stdin, termios.TCSANOW, before)


Reader = PipeReader | TerminalReader


def _keys() -> Any:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


def _completer(completions: Completions) -> Any:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion, NestedCompleter, PathCompleter
    from prompt_toolkit.document import Document

    files = PathCompleter(expanduser=True)
    after = {name: files if words is None else words for name, words in completions.items()}
    commands = NestedCompleter.from_nested_dict(after)

    class CommandCompleter(Completer):
        def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
            if document.text_before_cursor.startswith("/"):  # which is part of no word
                yield from commands.get_completions(Document(document.text_before_cursor[1:]), event)

    return CommandCompleter()


def _history() -> Any:
    from platformdirs import user_state_path
    from prompt_toolkit.history import FileHistory

    class History(FileHistory):
        """Ignores errors: a full disk or a folder without write access must not stop the chat."""

        def load_history_strings(self) -> Iterable[str]:
            with suppress(OSError):
                yield from super().load_history_strings()

        def store_string(self, string: str) -> None:
            with suppress(OSError):
                path = Path(str(self.filename))
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.touch(mode=0o600)  # others on the machine may not read it, whatever the folder allows
                super().store_string(string)

    return History(user_state_path("pymtp", appauthor=False) / "chat_history")
