"""The conversation at work: reads messages and commands, shows answers, takes Ctrl-C.

Owns what the user has set for the next answers. The commands are in commands.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from pymtp import Answer, Conversation, GenerationParams, Stats
from pymtp.errors import PymtpError
from pymtp.serving.generation import OnPrompt

from ..interrupt import Interrupt
from ..progress import Show, prompting
from . import commands
from .reader import Completions, Reader
from .screen import Screen, status_line
from .thinking import ThinkingSplitter

INTERRUPTED = 130


class Leave(Exception):
    """The user wants to leave; the argument is the exit code."""


class Repl:
    """See `run`. What commands set is public."""

    def __init__(
        self,
        conversation: Conversation,
        params: GenerationParams,
        *,
        screen: Screen,
        open_reader: Callable[[Completions], Reader],
    ) -> None:
        self.conversation = conversation
        self.params = params
        self.screen = screen
        self._reader = open_reader(lambda before: commands.completions(before, self))
        self.attached: list[str] = []
        """Texts that go with the next message."""
        self.last_answer: Answer | None = None
        self.stats = Stats()
        """Of all answers."""
        self._leaves_next = False  # whether the next Ctrl-C leaves

    def run(self) -> int:
        """Talk until the user leaves; return the exit code. Raises OutputClosed and CommandError."""
        if self._reader.is_interactive:
            model = self.conversation.model
            name = model.info.name or model.info.path.name
            self.screen.note(f"{name}, {model.session.n_ctx} tokens of context; /help lists the commands")
        while True:
            try:
                text = self._reader.read()
                self._leaves_next = False
                self._take(text)
            except EOFError:
                return 0
            except KeyboardInterrupt:
                if self._leaves_next or not self._reader.is_interactive:
                    return INTERRUPTED
                self._leaves_next = True
                self.screen.note("Ctrl-C once more, or Ctrl-D, leaves")
            except Leave as leave:
                return int(leave.args[0])

    def say(self, text: str) -> None:
        """Send a message, and what is attached to it, and show the answer."""
        message = "\n\n".join([*self.attached, text])
        self._show(lambda on_prompt: self.conversation.ask(message, self.params, on_prompt=on_prompt))
        self.attached = []

    def regenerate(self) -> None:
        """Show another answer to the last message: with a fixed seed it would be the same."""
        params = replace(self.params, sampling=replace(self.params.sampling, seed=None))
        self._show(lambda on_prompt: self.conversation.regenerate(params, on_prompt=on_prompt))

    def _take(self, text: str) -> None:
        try:
            if text.startswith("/") and not text.startswith("//"):
                commands.execute(text[1:], self)
            else:
                self.say(text.removeprefix("/") if text.startswith("//") else text)
        except (PymtpError, commands.Refused) as error:
            self.screen.end_answer()
            self.screen.note(f"pymtp: {error}")

    def _show(self, start: Callable[[OnPrompt | None], Answer]) -> None:
        with Interrupt() as interrupt, self._reader.hushed():
            was_stopped = self._answer(start, interrupt)
        if was_stopped and not self._reader.is_interactive:
            raise Leave(INTERRUPTED)
        self._leaves_next = was_stopped

    def _answer(self, start: Callable[[OnPrompt | None], Answer], interrupt: Interrupt) -> bool:
        """Show an answer and its status line; return whether Ctrl-C has stopped it."""
        n_dropped = self.conversation.n_dropped
        answer = None
        try:
            with prompting() as show:
                answer = start(self._below_text(show) if show else None)
                self._note_dropped(n_dropped)
                self._stream(answer, interrupt)
            was_stopped = interrupt.requested
        except KeyboardInterrupt:
            if interrupt.requested:  # it is the second one
                raise Leave(INTERRUPTED) from None
            was_stopped = True
        self.screen.end_answer()
        if answer is not None:
            self._sum_up(answer)
        return was_stopped

    def _below_text(self, show: Show) -> Show:
        """Like `show`, with its line below what there is of an answer that takes another prompt to go on."""

        def show_below(done: float, total: float) -> None:
            self.screen.end_answer()
            show(done, total)

        return show_below

    def _stream(self, answer: Answer, interrupt: Interrupt) -> None:
        splitter = ThinkingSplitter(starts_inside=answer.starts_thinking)
        n_dropped = self.conversation.n_dropped
        try:
            for piece in answer:
                interrupt.defer()
                if self.conversation.n_dropped > n_dropped:
                    self.screen.end_answer()
                    n_dropped = self._note_dropped(n_dropped)
                self._write(splitter.push(piece))
                if interrupt.requested:
                    break
        finally:
            answer.close()
        self._write(splitter.flush())

    def _write(self, parts: Iterable[tuple[str, bool]]) -> None:
        for text, is_thinking in parts:
            self.screen.answer(text, is_thinking=is_thinking)

    def _note_dropped(self, before: int) -> int:
        n_dropped = self.conversation.n_dropped
        if n := (n_dropped - before) // 2:
            turns = "the oldest turn is" if n == 1 else f"the {n} oldest turns are"
            self.screen.note(f"[the context is full: {turns} left out from now on]")
        return n_dropped

    def _sum_up(self, answer: Answer) -> None:
        self.last_answer = answer
        self.stats += answer.stats
        if answer.finish_reason == "context":
            self.screen.note("[the context is full: the answer ends here; -c makes it larger]")
        self.screen.note(status_line(answer, self.screen.columns))
