"""The chat loop: reads messages and commands, shows answers, handles Ctrl-C.

Owns the order of things; what commands change is in state.py.
"""

from pymtp import Answer, PymtpError

from ..answer import parts_of
from ..interrupt import Interrupt
from ..progress import prompting
from . import commands, files
from .reader import Reader
from .screen import CUT, status_line
from .state import Chat, Start

INTERRUPTED = 130


class Repl:
    def __init__(self, chat: Chat, reader: Reader, *, first: str | None = None, saves: bool = False) -> None:
        self._chat = chat
        self._reader = reader
        self._saves = saves and reader.is_interactive
        self._has_failed = False  # whether a command could not be run
        self._quits_next = False  # whether the next Ctrl-C quits
        self._first = first
        self._n_dropped = 0  # messages that the user knows to be left out

    def run(self) -> int:
        """Chat until the user quits; return the exit code. Raises OutputClosed and CommandError."""
        with self._reader.without_echo():
            if self._reader.is_interactive:
                model = self._chat.conversation.model
                name = model.info.name or model.info.path.name
                self._chat.screen.note(f"{name}, {model.session.n_ctx} tokens of context; /help lists the commands")
            while True:
                try:
                    text = self._first or self._reader.read()
                    self._first = None
                    self._quits_next = False
                    self._handle(text)
                except EOFError:
                    return int(self._has_failed and not self._reader.is_interactive)
                except KeyboardInterrupt:
                    if self._quits_next or not self._reader.is_interactive:
                        return INTERRUPTED
                    self._quits_next = True
                    self._chat.screen.note("press Ctrl-C again, or Ctrl-D, to quit")

    def _handle(self, text: str) -> None:
        had_attached = bool(self._chat.attached or self._chat.images)
        before = [*self._chat.conversation.messages]
        try:
            if text.startswith("/") and not text.startswith("//"):
                start = commands.execute(text[1:], self._chat)
            else:
                start = self._chat.message(text.removeprefix("/") if text.startswith("//") else text)
            if start is not None:
                self._show(start)
            messages = self._chat.conversation.messages
            if self._saves and messages and messages != before:  # /clear leaves the last chat there
                files.autosave(self._chat.conversation)
        except PymtpError as error:
            self._has_failed = True
            if had_attached and not (self._chat.attached or self._chat.images):
                self._chat.screen.note("what was attached is dropped")  # it may be what the context has no room for
            self._chat.screen.note(f"pymtp: {error}")

    def _show(self, start: Start) -> None:
        with Interrupt() as interrupt:
            was_stopped = self._answer(start, interrupt)
        self._quits_next = was_stopped
        if was_stopped and not self._reader.is_interactive:
            raise KeyboardInterrupt

    def _answer(self, start: Start, interrupt: Interrupt) -> bool:
        """Show an answer and its status line; return whether Ctrl-C has stopped it."""
        self._n_dropped = self._chat.conversation.n_dropped
        answer = None
        try:
            # on a line below the answer so far: a long answer may need another prompt to continue
            with prompting(before=self._chat.screen.end_answer) as show:
                answer = start(show)
                self._note_dropped()
                self._stream(answer, interrupt)
            was_stopped = interrupt.requested
        except KeyboardInterrupt:
            if interrupt.requested:  # the second Ctrl-C
                self._quits_next = True
                raise
            was_stopped = True
        self._chat.screen.end_answer()
        if answer is not None:
            self._finish(answer)
        return was_stopped

    def _stream(self, answer: Answer, interrupt: Interrupt) -> None:
        chat, is_thinking = answer.params.chat, False
        for part in parts_of(answer, interrupt, with_drafts=self._chat.screen.display.color):
            self._note_dropped()
            if chat and part.is_thinking is not is_thinking:
                is_thinking = part.is_thinking
                self._chat.screen.tag(chat.thinking_begin if is_thinking else chat.thinking_ends[0])
                if is_thinking:
                    part = part._replace(text="\n" + part.text.lstrip("\n"))
                else:
                    self._chat.screen.end_answer()
            self._chat.screen.part(part)

    def _note_dropped(self) -> None:
        before, self._n_dropped = self._n_dropped, self._chat.conversation.n_dropped
        if (n := (self._n_dropped - before) // 2) > 0:
            turns = "the oldest turn is" if n == 1 else f"the {n} oldest turns are"
            self._chat.screen.note(f"[the context is full: {turns} left out from now on]")

    def _finish(self, answer: Answer) -> None:
        self._chat.last_answer = answer
        self._chat.stats += answer.stats
        if self._chat.screen.display.stats:
            self._chat.screen.note(status_line(answer, self._chat.screen.columns))
        elif answer.finish_reason in CUT:
            self._chat.screen.note(f"[cut: {CUT[answer.finish_reason]}]")
