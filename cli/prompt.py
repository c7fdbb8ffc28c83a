"""Where the prompt comes from: an argument, a file, a pipe, or one line typed at a terminal.

Owns the reading and its errors. Knows nothing about models or chat templates.
"""

import os
import sys

import typer

from pymtp.errors import explained
from pymtp.text.files import read_all, read_bytes

from .output import CommandError, print_stderr
from .text import decoded


def split_positionals(
    model: str | None, prompt: str | None, first: str | None, second: str | None
) -> tuple[str | None, str | None]:
    """Return (model, prompt) for `[MODEL] [PROMPT]`, with `model` from -m or -hf and `prompt` from -p.

    A single positional is the model if it names an existing path, or is one word that ends in .gguf, or if -p gives the
    prompt; else it is the prompt.
    """
    if prompt is not None:
        extra = second if model is None else first
        if extra is not None:
            raise typer.BadParameter(f"with -p the prompt is given already; leave out {extra!r}")
        return model or first, prompt
    if model is not None:
        if second is not None:
            raise typer.BadParameter(f"with -m or -hf the only argument is the prompt; leave out {second!r}")
        _check_prompt(first)
        return model, first
    # os.path.exists takes any prompt, empty or too long for a file name; one may end with the name of a model
    is_model = first is not None and (os.path.exists(first) or (first.endswith(".gguf") and " " not in first))
    if second is None and not is_model:
        return None, first
    _check_prompt(second)
    return first, second


def _check_prompt(prompt: str | None) -> None:
    if prompt is not None and prompt.endswith(".gguf") and os.path.exists(prompt):
        raise typer.BadParameter(f"{prompt} is a model but takes the place of the prompt: name it first, or with -m")


def read_prompt(argument: str | None, file: str | None) -> str:
    """Return the prompt; it is never empty and always valid Unicode. Raises CommandError and PymtpError.

    One newline at the end of a file or of piped text is not part of the prompt.
    """
    if argument is not None and file is not None:
        raise typer.BadParameter("give the prompt as an argument, with -p or with -f, in one of these ways")
    prompt = _read_text(file) if argument is None else _checked(argument)
    if not prompt:
        raise CommandError("the prompt is empty; give one as an argument, with -f FILE, or on stdin")
    return prompt


def _checked(argument: str) -> str:
    try:
        return decoded(argument)
    except UnicodeError:
        raise CommandError("the prompt is not valid UTF-8; convert it first (iconv -t UTF-8)") from None


def _read_text(file: str | None) -> str:
    is_stdin = file is None or file == "-"
    source, fix = ("stdin", "give it with -f FILE") if is_stdin else (str(file), "check the path after -f")
    with explained(f"read the prompt from {source}", fix):
        data = _read_stdin() if is_stdin else read_bytes(source)
    try:
        return data.decode("utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError as error:
        fix = "convert it first (iconv -t UTF-8)"
        raise CommandError(f"{source} is not valid UTF-8 (byte {error.start}); {fix}") from None


def _read_stdin() -> bytes:
    if sys.stdin is None:
        raise CommandError("there is no prompt and stdin is closed; give one as an argument or with -f FILE")
    if not sys.stdin.isatty():
        return read_all(sys.stdin.buffer)
    print_stderr("prompt> ", ends_line=False)
    return sys.stdin.buffer.readline()
