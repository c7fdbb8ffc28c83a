"""The slash commands of a chat.

Owns their names, help texts and actions. A command is an entry of COMMANDS.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pymtp.text.files import read_text_record

from ..answer import Part
from ..errors import CommandError
from ..report import stats_block
from ..sampling import escaped, parameter_of_flag, unescaped
from . import clipboard, files, settings
from .reader import unquoted
from .screen import CUT

if TYPE_CHECKING:
    from .repl import Repl


class Refused(Exception):
    """The command cannot be run. The message is one line that names the fix."""


@dataclass(frozen=True)
class Command:
    """`run` takes the chat and what was typed after the name."""

    arguments: str
    help: str
    run: Callable[[Repl, str], None]
    complete: Callable[[Repl, str], Iterable[str]] = lambda repl, typed: ()


def execute(text: str, repl: Repl) -> None:
    """Run a command. Raises Refused and PymtpError with a one-line message."""
    name, _, argument = text.partition(" ")
    name = _ALIASES.get(name, name)
    command = COMMANDS.get(name)
    if command is None:
        nearest = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean /{nearest[0]}?" if nearest else "/help lists them"
        raise Refused(f"no command /{name}; {hint} (to send it as a message, begin with //)")
    if argument.strip() and not command.arguments:
        raise Refused(f"/{name} takes no argument")
    command.run(repl, argument.strip())


def completions(before: str, repl: Repl) -> Iterator[tuple[str, int]]:
    """See reader.Completions."""
    if not before.startswith("/") or "\n" in before:
        return
    name, space, typed = before[1:].partition(" ")
    if not space:
        yield from ((f"{known} ", len(name)) for known in COMMANDS if known.startswith(name))
    elif name in COMMANDS:
        for text in COMMANDS[name].complete(repl, typed):
            yield text, len(typed)


def _help(repl: Repl, _: str) -> None:
    repl.screen.table((f"/{name} {command.arguments}".rstrip(), command.help) for name, command in COMMANDS.items())
    repl.screen.note('Enter sends, Alt-Enter starts a new line, """ begins and ends several lines')
    repl.screen.note("Ctrl-C stops an answer, a second one quits")


def _exit(repl: Repl, _: str) -> None:
    raise EOFError  # as Ctrl-D


def _clear(repl: Repl, _: str) -> None:
    repl.conversation.clear()
    repl.attached, repl.images = [], []
    repl.screen.note("new conversation" + (", same system prompt" if repl.conversation.system else ""))


def _regenerate(repl: Repl, typed: str) -> None:
    turn = _turn(repl, typed, "regen")
    _note_turns_after(repl, turn)
    repl.regenerate(turn)


def _edit(repl: Repl, typed: str) -> None:
    number, _, text = typed.partition(" ")
    if not number.isdecimal():
        number, text = "", typed
    turn = _turn(repl, number, "edit")
    if text.strip():
        _note_turns_after(repl, turn)
        repl.send(unquoted(text.strip()), turn)
    elif repl.can_edit:
        _note_turns_after(repl, turn)
        repl.edited = turn
    else:
        raise Refused("/edit needs the new message here: /edit [N] MESSAGE")


def _turn(repl: Repl, typed: str, command: str) -> int:
    """The turn that was typed, from 1 as people count; the last one if there is none."""
    n = len(repl.conversation.messages) // 2
    if not n:
        raise Refused(f"there is no {'answer to regenerate' if command == 'regen' else 'message to edit'} yet")
    if not typed:
        return n - 1
    if not typed.isdecimal() or not 1 <= int(typed) <= n:
        raise Refused(f"/{command} takes the number of a message, 1 to {n}; /show chat shows them")
    return int(typed) - 1


def _note_turns_after(repl: Repl, turn: int) -> None:
    if n := len(repl.conversation.messages) // 2 - turn - 1:
        repl.screen.note("this drops the " + (f"{n} turns" if n > 1 else "turn") + f" after message {turn + 1}")


def _undo(repl: Repl, _: str) -> None:
    if repl.attached or repl.images:
        repl.screen.note(f"dropped what was to go with the next message; {_turns(repl)} left")
        repl.attached, repl.images = [], []
        return
    if not repl.conversation.undo():
        raise Refused("there is nothing to undo")
    repl.screen.note(f"removed the last message and its answer; {_turns(repl)} left")


def _system(repl: Repl, text: str) -> None:
    if text:
        repl.conversation.system = None if text == "none" else text
    repl.screen.note(f"system prompt: {repl.conversation.system or 'none'}")


def _set(repl: Repl, text: str) -> None:
    typed, _, value = text.partition(" ")
    values = {**_settings(repl), **_display(repl)}
    if not typed:
        repl.screen.table(values.items())
        return
    name = _parameter(typed)
    if name in _display(repl):
        if value:
            repl.screen.display = settings.with_value(repl.screen.display, name, value.strip())
        repl.screen.note(f"{name}: {_display(repl)[name]}")
        return
    if name not in values:
        nearest = get_close_matches(name, [*values, *parameter_of_flag()], n=1)
        raise Refused(f"no parameter {name}; " + (f"did you mean {nearest[0]}?" if nearest else "/set lists them"))
    if value:
        _change(repl, name, value.strip())
    repl.screen.note(f"{name}: {_settings(repl)[name]}")


def _parameter(typed: str) -> str:
    """The parameter of a name, or of the name of its flag."""
    flags = {**parameter_of_flag(), "n": "max_tokens", "n-predict": "max_tokens"}
    name = typed.lstrip("-")
    return flags.get(name) or flags.get(name.replace("_", "-")) or name.replace("-", "_")


def _change(repl: Repl, name: str, value: str) -> None:
    if name == "seed" and value == "-1":
        value = "random"
    if name == "dry_sequence_breakers":
        value = unescaped(value)
    if name == "max_tokens":
        repl.params = settings.with_value(repl.params, name, value)
    else:
        repl.params = replace(repl.params, sampling=settings.with_value(repl.params.sampling, name, value))


def _settings(repl: Repl) -> dict[str, str]:
    sampling = repl.params.sampling
    values = {name: settings.typed(getattr(sampling, name)) for name in settings.names(sampling)}
    special = {
        "seed": "random" if sampling.seed is None else str(sampling.seed),
        "dry_sequence_breakers": escaped(values["dry_sequence_breakers"]),
        "logit_bias": ";".join(f"{token}{bias:+g}" for token, bias in dict(sampling.logit_bias).items()) or "none",
    }
    return {**values, **special, "max_tokens": str(repl.params.max_tokens)}


def _display(repl: Repl) -> dict[str, str]:
    display = repl.screen.display
    return {name: settings.typed(getattr(display, name)) for name in settings.names(display)}


def _show_chat(repl: Repl) -> None:
    for i, message in enumerate(repl.conversation.messages):
        repl.screen.note(f"{i // 2 + 1}. {message['role']}:" if i % 2 == 0 else f"{message['role']}:")
        for image in message.get("images", ()):
            repl.screen.note(f"[an image of {image.width} x {image.height} pixels]")
        text = message["content"] + "\n"
        if message["role"] == "user":
            repl.screen.typed(text)
        else:
            repl.screen.part(Part(text))
        repl.screen.end_answer()
        if cut := CUT.get(message.get("finish_reason", "eog")):
            repl.screen.note(f"[{cut}]")


def _show(repl: Repl, what: str) -> None:
    if what == "chat":
        _show_chat(repl)
        return
    if what:
        raise Refused("/show shows the settings, /show chat the messages")
    model, info = repl.conversation.model, repl.conversation.model.info
    repl.screen.table(
        [
            ("model", str(info.path)),
            ("architecture", f"{info.architecture} {info.quantization or ''}".strip()),
            ("context", f"{model.session.n_ctx} tokens"),
            ("turns", _turns(repl)),
            ("system prompt", repl.conversation.system or "none"),
            ("drafting", _drafting(repl)),
            *_settings(repl).items(),
            *_display(repl).items(),
        ]
    )


def _stats(repl: Repl, _: str) -> None:
    answer = repl.last_answer
    if answer is None:
        raise Refused("there is no answer yet")
    n_new = answer.stats.prompt_tokens
    repl.screen.note("the last answer")
    repl.screen.note(f"prompt in cache: {answer.n_cached} of {answer.n_prompt} tokens, {n_new} computed")
    plain_tok_s = repl.conversation.model.plain_tok_s
    repl.screen.note(stats_block(answer.stats, answer.acceptance, plain_tok_s))
    repl.screen.note("\nall answers")
    repl.screen.note(stats_block(repl.stats, answer.acceptance, plain_tok_s))


def _mtp(repl: Repl, text: str) -> None:
    if text:
        n = _draft_max(text, repl.conversation.model.session.n_draft_max)
        repl.params = replace(repl.params, draft_max=n)
    repl.screen.note(f"drafting: {_drafting(repl)}")


def _draft_max(text: str, limit: int) -> int | Literal["auto"] | None:
    if text == "off":
        return 0
    if limit == 0:
        raise Refused("the model cannot draft: it has no usable MTP heads, or was loaded with --draft none")
    if text == "auto":
        return "auto"
    if text == "on":
        return None
    if not text.isdecimal() or int(text) > limit:
        raise Refused(f"/mtp takes on, off, auto or 0 to {limit}; for more, restart with --draft-max")
    return int(text)


def _drafting(repl: Repl) -> str:
    asked, loaded = repl.params.draft_max, repl.conversation.model.draft_max
    n = loaded if asked is None or not loaded else asked
    if n == "auto":
        return "adaptive"
    return f"{n} token{'s' * (n != 1)} per round" if n else "off"


def _read(repl: Repl, file: str) -> None:
    for path in _matching(file):
        text = _text_of(path, "/read")
        repl.attached.append(text)
        repl.screen.note(f"{path}: {len(text)} characters go with the next message")


def _image(repl: Repl, file: str) -> None:
    from pymtp import Image

    if repl.conversation.model.projector is None:
        raise Refused("the model takes no images; restart with its projector: --mmproj FILE")
    image = Image(_path(file, "/image"))
    repl.images.append(image)
    repl.screen.note(f"{file}: {image.width} x {image.height} pixels go with the next message")


def _matching(file: str) -> list[str]:
    """The file, or those that a pattern such as *.py matches."""
    if not any(char in file for char in "*?[") or os.path.exists(file):
        return [file]
    found = sorted(path for path in glob(str(_path(file, "/read"))) if os.path.isfile(path))
    if not found:
        raise Refused(f"no file matches {file}; check the path")
    return found


def _copy(repl: Repl, what: str) -> None:
    answers = [message["content"] for message in repl.conversation.messages if message["role"] == "assistant"]
    if not answers:
        raise Refused("there is no answer to copy yet")
    if what not in ("", "code"):
        raise Refused("/copy copies the last answer, /copy code the code in it")
    codes = re.findall(r"^```[^\n]*\n(.*?)^```", answers[-1], re.MULTILINE | re.DOTALL)
    if what and not codes:
        raise Refused("there is no code in the last answer")
    text = "\n".join(codes) if what else answers[-1]
    taken_by = clipboard.copy(text)
    if taken_by is None:
        raise Refused("there is no clipboard here; /save writes the conversation to a file")
    repl.screen.note(f"{len(text)} characters copied, with {taken_by}")


def _model(repl: Repl, path: str) -> None:
    if not path:
        repl.screen.note(f"model: {repl.conversation.model.info.path}")
        return
    if not os.path.isfile(Path(path).expanduser()):
        raise Refused(f"{path}: no such file; name a GGUF, or restart with -hf USER/REPO")
    try:
        repl.switch_model(str(Path(path).expanduser()))
    except CommandError as error:
        raise Refused(str(error)) from error
    info = repl.conversation.model.info
    repl.screen.note(f"{info.name or info.path.name} answers from now on; {_turns(repl)} kept")


def _save(repl: Repl, file: str) -> None:
    path = _path(file, "/save")
    if os.path.exists(path) and not files.is_chat(path):
        raise Refused(f"{file} exists and is not a saved chat; choose another name")
    replaces = ", in place of the chat that was there" if os.path.exists(path) else ""
    files.write(path, repl.conversation)
    repl.screen.note(f"{file}: {_turns(repl)} saved{replaces}")


def _load(repl: Repl, file: str) -> None:
    saved = files.read(_text_of(file, "/load"))
    if saved is None:
        raise Refused(f"{file} is not a saved chat; name a file written by /save")
    repl.conversation.restore(saved.messages)
    repl.conversation.system = saved.system
    repl.screen.note(f"{file}: {_turns(repl)} loaded")


def _path(file: str, command: str) -> Path:
    if not file or "\0" in file:
        raise Refused(f"{command} needs the name of a file")
    try:
        return Path(file).expanduser()
    except RuntimeError as error:  # no user of that name
        raise Refused(f"{file}: {error}; check the path") from error


def _text_of(file: str, command: str) -> str:
    path = _path(file, command)
    try:
        return read_text_record(path)
    except UnicodeDecodeError:
        raise Refused(f"{file} is not valid UTF-8; convert it first (iconv -t UTF-8)") from None
    except OSError as error:
        raise Refused(f"cannot read {file}: {error.strerror}; check the path") from error


def _turns(repl: Repl) -> str:
    n = len(repl.conversation.messages) // 2
    n_out = repl.conversation.n_dropped // 2
    return f"{n} turn{'' if n == 1 else 's'}" + (f" ({n_out} of them left out)" if n_out else "")


def _names(repl: Repl, typed: str) -> list[str]:
    return [f"{name} " for name in (*_settings(repl), *_display(repl)) if name.startswith(typed)]


def _modes(repl: Repl, typed: str) -> list[str]:
    return [mode for mode in ("on", "off", "auto") if mode.startswith(typed)]


def _files(repl: Repl, typed: str) -> list[str]:
    folder, _, start = typed.rpartition("/")
    root = Path(f"{folder}/" if "/" in typed else ".").expanduser()
    try:
        found = sorted(path for path in root.iterdir() if path.name.startswith(start))
    except (OSError, RuntimeError):
        return []
    prefix = typed[: len(typed) - len(start)]
    return [f"{prefix}{path.name}{'/' if path.is_dir() else ''}" for path in found]


_ALIASES = {"quit": "exit", "bye": "exit", "?": "help", "glob": "read", "reset": "clear", "retry": "regen"}
"""Names that other programs have."""

COMMANDS: dict[str, Command] = {
    "help": Command("", "list the commands", _help),
    "exit": Command("", "quit; so do /quit and Ctrl-D", _exit),
    "clear": Command("", "start a new conversation", _clear),
    "regen": Command("[N]", "answer the last message again, or message N", _regenerate),
    "edit": Command(
        "[N] [TEXT]", "change the last message, or message N, and answer it; drops the turns after it", _edit
    ),
    "undo": Command("", "drop attached files, else the last message and its answer", _undo),
    "system": Command("[TEXT]", "show or change the system prompt; none removes it", _system),
    "set": Command("[NAME [VALUE]]", "show or change sampling parameters, color, markdown and stats", _set, _names),
    "show": Command("[chat]", "show the settings or the messages", _show, lambda repl, typed: ["chat"]),
    "stats": Command("", "show speed, acceptance and cache use, of the last answer and of all", _stats),
    "mtp": Command("[on|off|K|auto]", "show or change the draft length", _mtp, _modes),
    "copy": Command("[code]", "copy the last answer, or the code in it", _copy, lambda repl, typed: ["code"]),
    "model": Command("[FILE]", "show the model, or continue with another one", _model, _files),
    "read": Command("FILE", "send a text file, or several (*.py), with the next message", _read, _files),
    "image": Command("FILE", "send an image with the next message", _image, _files),
    "save": Command("FILE", "save the conversation", _save, _files),
    "load": Command("FILE", "continue a saved conversation", _load, _files),
}
