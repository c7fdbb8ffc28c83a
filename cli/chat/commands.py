"""The slash commands of a chat.

Owns their names, help texts and actions. A command is an entry of COMMANDS; one that cannot be run raises PymtpError.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from glob import glob
from pathlib import Path
from typing import Literal, NamedTuple

from pymtp import Image, SamplingParams
from pymtp.errors import PymtpError, explained
from pymtp.text.files import read_text_record

from ..answer import Part
from ..asked import escaped, parameter_of_flag, unescaped
from ..report import stats_block
from . import files
from .screen import CUT, Display
from .state import Chat, Start, as_typed, names, with_value


class Command(NamedTuple):
    """`run` takes the chat and what was typed after the name; it may return an answer that is to be shown."""

    arguments: str
    help: str
    run: Callable[[Chat, str], Start | None]
    words: Sequence[str] = ()
    """What `arguments` may begin with; FILE: any file."""


def execute(text: str, chat: Chat) -> Start | None:
    """Run a command; return the answer that it begins, if any. Raises PymtpError, in one line."""
    name, _, argument = text.partition(" ")
    name = _ALIASES.get(name, name)
    command = COMMANDS.get(name)
    if command is None:
        nearest = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean /{nearest[0]}?" if nearest else "/help lists them"
        raise PymtpError(f"no command /{name}; {hint} (to send it as a message, begin with //)")
    if argument.strip() and not command.arguments:
        raise PymtpError(f"/{name} takes no argument")
    return command.run(chat, argument.strip())


def completions() -> dict[str, set[str] | None]:
    """See reader.Completions."""
    return {name: None if command.arguments == "FILE" else {*command.words} for name, command in COMMANDS.items()}


def _help(chat: Chat, _: str) -> None:
    chat.screen.table((f"/{name} {command.arguments}".rstrip(), command.help) for name, command in COMMANDS.items())
    chat.screen.note("Enter sends, Alt-Enter or a backslash before Enter starts a new line")
    chat.screen.note("Ctrl-C stops an answer, a second one quits")


def _exit(chat: Chat, _: str) -> None:
    raise EOFError  # as Ctrl-D


def _clear(chat: Chat, _: str) -> None:
    chat.conversation.clear()
    chat.attached, chat.images = [], []
    chat.screen.note("new conversation" + (", same system prompt" if chat.conversation.system else ""))


def _regenerate(chat: Chat, _: str) -> Start:
    if not chat.conversation.messages:
        raise PymtpError("there is no answer to regenerate yet")
    # a fixed seed would give the same answer
    params = replace(chat.params, sampling=replace(chat.params.sampling, seed=None))
    return lambda show: chat.conversation.regenerate(params, on_prompt=show)


def _undo(chat: Chat, _: str) -> None:
    if chat.attached or chat.images:
        chat.screen.note(f"dropped what was to go with the next message; {_turns(chat)} left")
        chat.attached, chat.images = [], []
        return
    if not chat.conversation.undo():
        raise PymtpError("there is nothing to undo")
    chat.screen.note(f"removed the last message and its answer; {_turns(chat)} left")


def _system(chat: Chat, text: str) -> None:
    if text:
        chat.conversation.system = None if text == "none" else text
    chat.screen.note(f"system prompt: {chat.conversation.system or 'none'}")


def _set(chat: Chat, text: str) -> None:
    typed, _, value = text.partition(" ")
    settings = _settings(chat)
    if not typed:
        chat.screen.table(settings.items())
        return
    name = _parameter(typed)
    if name not in settings:
        nearest = get_close_matches(name, [*settings, *parameter_of_flag()], n=1)
        raise PymtpError(f"no parameter {name}; " + (f"did you mean {nearest[0]}?" if nearest else "/set lists them"))
    if value:
        _change(chat, name, value.strip())
    chat.screen.note(f"{name}: {_settings(chat)[name]}")


def _parameter(typed: str) -> str:
    flags = {**parameter_of_flag(), "n": "max_tokens", "n-predict": "max_tokens"}
    name = typed.lstrip("-")
    return flags.get(name) or flags.get(name.replace("_", "-")) or name.replace("-", "_")


def _change(chat: Chat, name: str, value: str) -> None:
    if name == "seed" and value == "-1":
        value = "random"
    if name == "dry_sequence_breakers":
        value = unescaped(value)
    if name in names(chat.screen.display):
        chat.screen.display = with_value(chat.screen.display, name, value)
    elif name == "max_tokens":
        chat.params = with_value(chat.params, name, value)
    else:
        chat.params = replace(chat.params, sampling=with_value(chat.params.sampling, name, value))


def _settings(chat: Chat) -> dict[str, str]:
    """What /set shows and changes: sampling, the length of answers, and how they are shown."""
    sampling, display = chat.params.sampling, chat.screen.display
    values = {name: as_typed(getattr(sampling, name)) for name in names(sampling)}
    special = {
        "seed": "random" if sampling.seed is None else str(sampling.seed),
        "dry_sequence_breakers": escaped(values["dry_sequence_breakers"]),
        "logit_bias": ";".join(f"{token}{bias:+g}" for token, bias in dict(sampling.logit_bias).items()) or "none",
    }
    shown = {name: as_typed(getattr(display, name)) for name in names(display)}
    return {**values, **special, "max_tokens": str(chat.params.max_tokens), **shown}


def _show_chat(chat: Chat) -> None:
    for message in chat.conversation.messages:
        chat.screen.note(f"{message['role']}:")
        for image in message.get("images", ()):
            chat.screen.note(f"[an image of {image.width} x {image.height} pixels]")
        chat.screen.part(Part(message["content"] + "\n"))
        chat.screen.end_answer()
        if cut := CUT.get(message.get("finish_reason", "eog")):
            chat.screen.note(f"[cut: {cut}]")


def _show(chat: Chat, what: str) -> None:
    if what == "chat":
        _show_chat(chat)
        return
    if what:
        raise PymtpError("/show shows the settings, /show chat the messages")
    model, info = chat.conversation.model, chat.conversation.model.info
    chat.screen.table(
        [
            ("model", str(info.path)),
            ("architecture", f"{info.architecture} {info.quantization or ''}".strip()),
            ("context", f"{model.session.n_ctx} tokens"),
            ("turns", _turns(chat)),
            ("system prompt", chat.conversation.system or "none"),
            ("drafting", _drafting(chat)),
            *_settings(chat).items(),
        ]
    )


def _stats(chat: Chat, _: str) -> None:
    answer = chat.last_answer
    if answer is None:
        raise PymtpError("there is no answer yet")
    n_new = answer.stats.prompt_tokens
    chat.screen.note("the last answer")
    chat.screen.note(f"prompt in cache: {answer.n_cached} of {answer.n_prompt} tokens, {n_new} computed")
    plain_tok_s = chat.conversation.model.plain_tok_s
    chat.screen.note(stats_block(answer.stats, answer.acceptance, plain_tok_s))
    chat.screen.note("\nall answers")
    chat.screen.note(stats_block(chat.stats, answer.acceptance, plain_tok_s))


def _mtp(chat: Chat, text: str) -> None:
    if text:
        n = _draft_max(text, chat.conversation.model.session.n_draft_max)
        chat.params = replace(chat.params, draft_max=n)
    chat.screen.note(f"drafting: {_drafting(chat)}")


def _draft_max(text: str, limit: int) -> int | Literal["auto"] | None:
    if text == "off":
        return 0
    if limit == 0:
        raise PymtpError("the model cannot draft: it has no usable MTP heads, or was loaded with --draft none")
    if text == "auto":
        return "auto"
    if text == "on":
        return None
    if not text.isdecimal() or int(text) > limit:
        raise PymtpError(f"/mtp takes on, off, auto or 0 to {limit}; for more, restart with --draft-max")
    return int(text)


def _drafting(chat: Chat) -> str:
    asked, loaded = chat.params.draft_max, chat.conversation.model.draft_max
    n = loaded if asked is None or not loaded else asked
    if n == "auto":
        return "adaptive"
    return f"{n} token{'s' * (n != 1)} per round" if n else "off"


def _read(chat: Chat, file: str) -> None:
    for path in _matching(file):
        text = _text_of(path, "/read")
        chat.attached.append(text)
        chat.screen.note(f"{path}: {len(text)} characters go with the next message")


def _image(chat: Chat, file: str) -> None:
    if chat.conversation.model.projector is None:
        raise PymtpError("the model takes no images; restart with its projector: --mmproj FILE")
    image = Image(_path(file, "/image"))
    chat.images.append(image)
    chat.screen.note(f"{file}: {image.width} x {image.height} pixels go with the next message")


def _matching(file: str) -> list[str]:
    """The file, or those that a pattern such as *.py matches."""
    if not any(char in file for char in "*?[") or os.path.exists(file):
        return [file]
    found = sorted(path for path in glob(str(_path(file, "/read"))) if os.path.isfile(path))
    if not found:
        raise PymtpError(f"no file matches {file}; check the path")
    return found


def _save(chat: Chat, file: str) -> None:
    path = _path(file, "/save")
    if os.path.exists(path) and not files.is_chat(path):
        raise PymtpError(f"{file} exists and is not a saved chat; choose another name")
    replaces = ", in place of the chat that was there" if os.path.exists(path) else ""
    files.write(path, chat.conversation)
    chat.screen.note(f"{file}: {_turns(chat)} saved{replaces}")


def _load(chat: Chat, file: str) -> None:
    saved = files.read(_text_of(file, "/load"))
    if saved is None:
        raise PymtpError(f"{file} is not a saved chat; name a file written by /save")
    chat.conversation.restore(saved.messages)
    chat.conversation.system = saved.system
    chat.screen.note(f"{file}: {_turns(chat)} loaded")


def _path(file: str, command: str) -> Path:
    if not file or "\0" in file:
        raise PymtpError(f"{command} needs the name of a file")
    try:
        return Path(file).expanduser()
    except RuntimeError as error:  # no user of that name
        raise PymtpError(f"{file}: {error}; check the path") from error


def _text_of(file: str, command: str) -> str:
    with explained(f"read {file}", "check the path"):
        return read_text_record(_path(file, command))


def _turns(chat: Chat) -> str:
    n = len(chat.conversation.messages) // 2
    n_out = chat.conversation.n_dropped // 2
    return f"{n} turn{'' if n == 1 else 's'}" + (f" ({n_out} of them left out)" if n_out else "")


_ALIASES = {"quit": "exit", "bye": "exit", "?": "help", "glob": "read", "reset": "clear", "retry": "regen"}
"""Names that other programs have."""
_NAMES = [*names(SamplingParams), "max_tokens", *names(Display)]

COMMANDS: dict[str, Command] = {
    "help": Command("", "list the commands", _help),
    "exit": Command("", "quit; so do /quit and Ctrl-D", _exit),
    "clear": Command("", "start a new conversation", _clear),
    "regen": Command("", "answer the last message again", _regenerate),
    "undo": Command("", "drop attached files, else the last message and its answer", _undo),
    "system": Command("[TEXT]", "show or change the system prompt; none removes it", _system),
    "set": Command("[NAME [VALUE]]", "show or change sampling parameters, color and stats", _set, _NAMES),
    "show": Command("[chat]", "show the settings or the messages", _show, ["chat"]),
    "stats": Command("", "show speed, acceptance and cache use, of the last answer and of all", _stats),
    "mtp": Command("[on|off|K|auto]", "show or change the draft length", _mtp, ["on", "off", "auto"]),
    "read": Command("FILE", "send a text file, or several (*.py), with the next message", _read),
    "image": Command("FILE", "send an image with the next message", _image),
    "save": Command("FILE", "save the conversation", _save),
    "load": Command("FILE", "continue a saved conversation", _load),
}
