"""A pymtp without a native library: the command line runs against it in tests.

`install` puts the fakes into the pymtp package. As a script it is the command line with the
fakes in place, for tests that need a process of their own; FAKE_PYMTP holds the script's answers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pymtp
from pymtp.gguf.facts import model_facts
from pymtp.serving.statistics import Stats


class FakeParams:
    """What is asked of a generation."""

    draft_note = None
    forced = None

    def __init__(self, **options: Any) -> None:
        self.options = options


@dataclass
class Script:
    """What the fake model does. `endless` repeats the pieces, slowly."""

    pieces: list[str] = field(default_factory=lambda: ["Hel", "lo"])
    endless: bool = False
    slow_prompt: bool = False
    template: bool = True
    note: str | None = None
    marker: str | None = None
    """A file that the model makes once a whole round of pieces was taken."""
    load_error: Exception | None = None
    generate_error: Exception | None = None
    finish_reason: str = "eog"
    interrupts_close: bool = False
    """Whether Ctrl-C comes while the model is freed."""
    exits_on_abort: bool = False
    """Whether the command line asked for it."""


class FakeGeneration:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.tokens: list[int] = []
        self.stats = Stats(prompt_tokens=4, prompt_s=0.5)
        self.logprobs: list[object] = []
        self.acceptance = "match"
        self.params = SimpleNamespace(chat=None)
        self.finish_reason: str | None = None
        self.closed = False
        self.text = ""

    @property
    def message(self) -> SimpleNamespace:
        return SimpleNamespace(content=self.text, reasoning="")

    def __iter__(self) -> Iterator[str]:
        if self.script.slow_prompt:
            print("prompt is being processed", file=sys.stderr, flush=True)
            time.sleep(600)
        while True:
            for piece in self.script.pieces:
                self.tokens.append(len(self.tokens))
                self.stats.add_round(2, 1)
                self.stats.generated_tokens += 1
                self.stats.generation_s += 0.25
                self.text += piece
                yield piece
            if self.script.marker is not None:
                Path(self.script.marker).touch()
            if not self.script.endless:
                break
            time.sleep(0.02)
        if self.script.generate_error is not None:
            raise self.script.generate_error
        self.finish_reason = self.script.finish_reason

    def close(self) -> None:
        self.closed = True


class FakeModel:
    script: ClassVar[Script] = Script()
    calls: ClassVar[list[dict[str, Any]]] = []
    """Arguments of each Model(...) and generate(...), in order."""

    def __init__(self, path: str | os.PathLike[str], *, on_load: object, **params: Any) -> None:
        options = {name: value for each in params.values() for name, value in vars(each).items()}
        self.calls.append({"path": os.fspath(path), "on_load": on_load, **options})
        if self.script.load_error is not None:
            raise self.script.load_error
        self.info = model_facts(path)
        self.draft_max = options["draft_max"]
        self.has_chat_template = self.script.template
        self.draft_note = self.script.note
        self.room_note = None
        self.plain_tok_s = 2.0

    def __enter__(self) -> FakeModel:
        return self

    def __exit__(self, *_: object) -> None:
        if self.script.interrupts_close:
            signal.raise_signal(signal.SIGINT)

    def chat(
        self, messages: list[dict[str, str]], params: FakeParams, *, chat_params: object, on_prompt: object
    ) -> FakeGeneration:
        text = "".join(f"<{message['role']}>{message['content']}" for message in messages) + "<assistant>"
        return self.generate(text, params, on_prompt=on_prompt)

    def generate(
        self, prompt: str, params: FakeParams, *, images: Sequence[object] = (), on_prompt: object
    ) -> FakeGeneration:
        self.calls.append({"prompt": prompt, **params.options})
        return FakeGeneration(self.script)


def install(script: Script, set_item: Callable[[dict[str, Any], str, Any], None] = dict.__setitem__) -> None:
    """Replace what the command line uses of pymtp; `set_item(dictionary, key, value)` does it.

    The package's dictionary, not its attributes: asking for one would load the native library.
    """
    FakeModel.script = script
    FakeModel.calls = []
    set_item(vars(pymtp), "Model", FakeModel)
    set_item(vars(pymtp), "GenerationParams", FakeParams)
    set_item(vars(pymtp), "exit_on_abort", lambda: setattr(script, "exits_on_abort", True))
    set_item(vars(pymtp), "version_text", lambda: "pymtp 0 (fake)")


if __name__ == "__main__":
    from pymtp_cli.main import main

    install(Script(**json.loads(os.environ.get("FAKE_PYMTP", "{}"))))
    main()
