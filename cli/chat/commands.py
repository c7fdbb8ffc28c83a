"""The slash commands of a chat.

Owns their names, help texts and actions. A command is an entry of COMMANDS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pymtp.engine import snapshot as state

from ..report import stats_block
from ..sampling import escaped, parameter_of_flag, unescaped
from . import settings

if TYPE_CHECKING:
    from .repl import Repl

_FORMAT = "pymtp chat"


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
    repl.screen.note("Enter sends, Alt-Enter starts a new line; Ctrl-C stops an answer, twice quits")


def _exit(repl: Repl, _: str) -> None:
    from .repl import Quit

    raise Quit(0)


def _clear(repl: Repl, _: str) -> None:
    repl.conversation.clear()
    repl.attached = []
    repl.screen.note("new conversation, same system prompt")


def _regenerate(repl: Repl, _: str) -> None:
    if not repl.conversation.messages:
        raise Refused("there is no answer to regenerate yet")
    repl.regenerate()


def _undo(repl: Repl, _: str) -> None:
    if not repl.conversation.undo():
        raise Refused("there is nothing to undo")
    repl.screen.note(f"removed the last message and its answer; {_turns(repl)} left")


def _system(repl: Repl, text: str) -> None:
    if text:
        repl.conversation.system = None if text == "none" else text
    repl.screen.note(f"system prompt: {repl.conversation.system or 'none'}")


def _set(repl: Repl, text: str) -> None:
    typed, _, value = text.partition(" ")
    values = _settings(repl)
    if not typed:
        repl.screen.table(values.items())
        return
    name = _parameter(typed)
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


def _show(repl: Repl, what: str) -> None:
    if what == "chat":
        for message in repl.conversation.messages:
            repl.screen.note(f"{message['role']}:")
            repl.screen.answer(message["content"] + "\n")
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
        ]
    )


def _stats(repl: Repl, _: str) -> None:
    answer = repl.last_answer
    if answer is None:
        raise Refused("there is no answer yet")
    n_new = answer.stats.prompt_tokens
    repl.screen.note("the last answer")
    repl.screen.note(f"prompt in cache:         {answer.n_cached} of {answer.n_prompt} tokens, {n_new} computed")
    repl.screen.note(stats_block(answer.stats, answer.acceptance))
    repl.screen.note("\nall answers")
    repl.screen.note(stats_block(repl.stats, answer.acceptance))


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
    return f"{n} tokens per round" if n else "off"


def _read(repl: Repl, file: str) -> None:
    text = _text_of(file, "/read")
    repl.attached.append(text)
    repl.screen.note(f"{file}: {len(text)} characters go with the next message")


def _save(repl: Repl, file: str) -> None:
    path = _path(file, "/save")
    if path.exists() and not _is_chat(path):
        raise Refused(f"{file} exists and is not a saved chat; choose another name")
    saved = {"format": _FORMAT, "system": repl.conversation.system, "messages": repl.conversation.messages}
    state.write(path, f"{json.dumps(saved, ensure_ascii=False, indent=1)}\n".encode("utf-8", "replace"))
    repl.screen.note(f"{file}: {_turns(repl)} saved")


def _load(repl: Repl, file: str) -> None:
    saved = _chat_in(_text_of(file, "/load"))
    if saved is None:
        raise Refused(f"{file} is not a saved chat; name a file written by /save")
    repl.conversation.restore(saved["messages"])
    repl.conversation.system = saved["system"]
    repl.screen.note(f"{file}: {_turns(repl)} loaded")


def _is_chat(path: Path) -> bool:
    try:
        return path.is_file() and _chat_in(path.read_text(encoding="utf-8")) is not None
    except (OSError, ValueError):
        return False


def _chat_in(text: str) -> dict[str, Any] | None:
    """The saved chat in `text`, or None if it is not one."""
    try:
        saved = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_chat = isinstance(saved, dict) and saved.get("format") == _FORMAT and isinstance(saved.get("messages"), list)
    if not is_chat or not all(isinstance(message, dict) for message in saved["messages"]):
        return None
    return saved if saved.get("system") is None or isinstance(saved["system"], str) else None


def _path(file: str, command: str) -> Path:
    if not file or "\0" in file:
        raise Refused(f"{command} needs the name of a file")
    try:
        return Path(file).expanduser()
    except RuntimeError as error:  # no user of that name
        raise Refused(f"{file}: {error}; check the path") from error


def _text_of(file: str, command: str) -> str:
    path = _path(file, command)
    if path.exists() and not path.is_file():
        raise Refused(f"cannot read {file}: it is not a regular file; check the path")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Refused(f"{file} is not valid UTF-8; convert it first (iconv -t UTF-8)") from None
    except OSError as error:
        raise Refused(f"cannot read {file}: {error.strerror}; check the path") from error


def _turns(repl: Repl) -> str:
    n = len(repl.conversation.messages) // 2
    n_out = repl.conversation.n_dropped // 2
    return f"{n} turn{'' if n == 1 else 's'}" + (f" ({n_out} of them left out)" if n_out else "")


def _names(repl: Repl, typed: str) -> list[str]:
    return [f"{name} " for name in _settings(repl) if name.startswith(typed)]


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


COMMANDS: dict[str, Command] = {
    "help": Command("", "list the commands", _help),
    "exit": Command("", "quit; so does Ctrl-D", _exit),
    "clear": Command("", "start a new conversation", _clear),
    "regen": Command("", "answer the last message again", _regenerate),
    "undo": Command("", "remove the last message and its answer", _undo),
    "system": Command("[TEXT]", "show or change the system prompt; none removes it", _system),
    "set": Command("[NAME [VALUE]]", "show or change sampling parameters", _set, _names),
    "show": Command("[chat]", "show the settings or the messages", _show, lambda repl, typed: ["chat"]),
    "stats": Command("", "show speed, acceptance and cache of the last answer and of all", _stats),
    "mtp": Command("[on|off|K|auto]", "show or change the draft length", _mtp, _modes),
    "read": Command("FILE", "send a text file with the next message", _read, _files),
    "save": Command("FILE", "save the conversation", _save, _files),
    "load": Command("FILE", "continue a saved conversation", _load, _files),
}
