"""The chat loop: reads messages and commands, shows answers, handles Ctrl-C.

Owns the user's settings for the next answers. The commands are in commands.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pymtp import Answer, Conversation, GenerationParams, Image, Model, Stats
from pymtp.errors import ContextFull, PymtpError
from pymtp.serving.generation import OnPrompt

from ..answer import parts_of
from ..interrupt import Interrupt
from ..progress import Show, prompting
from . import commands, files
from .reader import Completions, Reader, unquoted
from .screen import CUT, Screen, status_line

INTERRUPTED = 130


class Quit(Exception):
    """The user wants to quit; the argument is the exit code."""


class Repl:
    """The chat loop: see `run`. What commands change is public."""

    def __init__(
        self,
        conversation: Conversation,
        params: GenerationParams,
        *,
        screen: Screen,
        open_reader: Callable[[Completions], Reader],
        open_model: Callable[[str], tuple[Model, GenerationParams]],
        first: str | None = None,
        saves: bool = False,
    ) -> None:
        self.conversation = conversation
        self.params = params
        self.screen = screen
        self.open_model = open_model
        """Loads the model at a path; returns it with the parameters for it. Raises PymtpError."""
        self._reader = open_reader(lambda before: commands.completions(before, self))
        self._saves = saves and self._reader.is_interactive
        self._has_failed = False  # whether a command could not be run
        self.attached: list[str] = []
        """Texts to send with the next message."""
        self.images: list[Image] = []
        """To send with the next message."""
        self.edited: int | None = None
        """The turn, from 0, whose message the next one replaces."""
        self.last_answer: Answer | None = None
        self.stats = Stats()
        """Of all answers of the model together."""
        self._quits_next = False  # whether the next Ctrl-C quits
        self._first = first

    def run(self) -> int:
        """Chat until the user quits; return the exit code. Raises OutputClosed and CommandError."""
        with self._reader.without_echo():
            return self._loop()

    def _loop(self) -> int:
        if self._reader.is_interactive:
            model = self.conversation.model
            name = model.info.name or model.info.path.name
            self.screen.note(f"{name}, {model.session.n_ctx} tokens of context; /help lists the commands")
        while True:
            try:
                text = self._first or self._read()
                self._first = None
                self._quits_next = False
                self._handle(text)
            except EOFError:
                return int(self._has_failed and not self._reader.is_interactive)
            except KeyboardInterrupt:
                if self.edited is not None:
                    self.edited = None
                    self.screen.note("nothing is changed")
                    continue
                if self._quits_next or not self._reader.is_interactive:
                    return INTERRUPTED
                self._quits_next = True
                self.screen.note("press Ctrl-C again, or Ctrl-D, to quit")
            except Quit as quit_:
                return int(quit_.args[0])

    @property
    def can_edit(self) -> bool:
        """Whether a message can be put where people type, to be changed."""
        return self._reader.can_edit

    def send(self, text: str, turn: int | None = None) -> None:
        """Send a message with what is attached, or in place of that of `turn`, and show the answer.

        If that fails, what was attached is gone too: it may be what the context has no room for.
        """
        message = "\n\n".join([*self.attached, text])
        before = self.conversation.messages[2 * turn].get("images", ()) if turn is not None else ()
        images = [*before, *self.images]

        def start(on_prompt: OnPrompt | None) -> Answer:
            if turn is None:
                return self.conversation.ask(message, self.params, images=images, on_prompt=on_prompt)
            return self.conversation.edit(turn, message, self.params, images=images, on_prompt=on_prompt)

        was_attached = self.attached or self.images
        self.attached, self.images = [], []
        try:
            self._show(start)
        except PymtpError:
            if was_attached:
                self.screen.note("what was attached is dropped")
            raise

    def regenerate(self, turn: int) -> None:
        """Answer the message of a turn again, with a random seed: a fixed one would give the same answer."""
        params = replace(self.params, sampling=replace(self.params.sampling, seed=None))
        self._show(lambda on_prompt: self.conversation.regenerate(params, turn=turn, on_prompt=on_prompt))

    def switch_model(self, path: str) -> None:
        """Continue the conversation with another model. Raises PymtpError, and keeps the old one then."""
        old = self.conversation
        new_model, params = self.open_model(path)
        new = Conversation(new_model, system=old.system, params=old.params)
        try:
            new.restore(old.messages)
        except PymtpError:
            new_model.close()
            raise
        self.conversation = new
        self.params = replace(params, max_tokens=self.params.max_tokens)
        self.last_answer, self.stats = None, Stats()
        old.model.close()

    def _read(self) -> str:
        if self.edited is None:
            return self._reader.read()
        old = self.conversation.messages[2 * self.edited]["content"]
        return self._reader.read(f"/{old}" if old.startswith("/") else old)

    def _handle(self, text: str) -> None:
        turn, self.edited = self.edited, None
        try:
            if text.startswith("/") and not text.startswith("//"):
                commands.execute(text[1:], self)
            else:
                self.send(unquoted(text.removeprefix("/") if text.startswith("//") else text), turn)
        except (PymtpError, commands.Refused) as error:
            self._has_failed = True
            hint = "; here /undo and /clear make room" if isinstance(error, ContextFull) else ""
            self.screen.note(f"pymtp: {error}{hint}")

    def _show(self, start: Callable[[OnPrompt | None], Answer]) -> None:
        with Interrupt() as interrupt:
            was_stopped = self._answer(start, interrupt)
        if was_stopped and not self._reader.is_interactive:
            raise Quit(INTERRUPTED)
        self._quits_next = was_stopped

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
            if interrupt.requested:  # the second Ctrl-C
                raise Quit(INTERRUPTED) from None
            was_stopped = True
        self.screen.end_answer()
        if answer is not None:
            self._finish(answer)
        return was_stopped

    def _below_text(self, show: Show) -> Show:
        """Like `show`, on a line below the answer so far: a long answer may need another prompt to continue."""

        def show_below(done: float, total: float) -> None:
            self.screen.end_answer()
            show(done, total)

        return show_below

    def _stream(self, answer: Answer, interrupt: Interrupt) -> None:
        chat, is_thinking = answer.params.chat, False
        n_dropped = self.conversation.n_dropped
        for part in parts_of(answer, interrupt, with_drafts=self.screen.display.color):
            if self.conversation.n_dropped > n_dropped:
                self.screen.end_answer()
                n_dropped = self._note_dropped(n_dropped)
            if chat and part.is_thinking is not is_thinking:
                is_thinking = part.is_thinking
                self.screen.tag(chat.thinking_begin if is_thinking else chat.thinking_ends[0])
                if is_thinking:
                    part = part._replace(text="\n" + part.text.lstrip("\n"))
                else:
                    self.screen.end_answer()
            self.screen.part(part)

    def _note_dropped(self, before: int) -> int:
        n_dropped = self.conversation.n_dropped
        if n := (n_dropped - before) // 2:
            turns = "the oldest turn is" if n == 1 else f"the {n} oldest turns are"
            self.screen.note(f"[the context is full: {turns} left out from now on]")
        return n_dropped

    def _finish(self, answer: Answer) -> None:
        self.last_answer = answer
        self.stats += answer.stats
        if answer.finish_reason == "context":
            self.screen.note("[the context is full: the answer ends here; use a larger one (-c)]")
        if self._saves:
            files.autosave(self.conversation)
        if self.screen.display.stats:
            self.screen.note(status_line(answer, self.screen.columns))
        elif answer.finish_reason in CUT:
            self.screen.note(f"[{CUT[answer.finish_reason]}]")
