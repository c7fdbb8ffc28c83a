"""`pymtp chat`: a conversation at a terminal, or line by line through a pipe.

Owns the order of steps, as run.py does; the conversation itself is in repl.py.
"""

import typer

import pymtp
from pymtp import Conversation
from pymtp.errors import explained
from pymtp.text.files import read_text_record

from ..asked import chat_of
from ..context import Found, load, named_model, note_embedded, prepare_library
from ..flags import Values
from ..interrupt import end_at_next
from ..output import CommandError, Output, print_note
from ..prompt import read_prompt
from . import files
from .commands import completions
from .reader import open_reader
from .repl import INTERRUPTED, Repl
from .screen import Display, Screen
from .state import Chat


def chat(own: Values) -> None:
    chat_params = chat_of(own)
    output = Output()
    path = named_model(own)
    has_first = own.prompt_text is not None or own.prompt_file is not None
    first = read_prompt(own.prompt_text, own.prompt_file) if has_first else None
    prepare_library(own)
    found = Found(own, path)
    if not found.has_chat_template:
        raise CommandError(f"{found.path} has no chat template; use it without one: pymtp run {found.path} --raw")
    note_embedded(found.path)
    with load(found) as loaded:
        conversation = pymtp.Conversation(loaded, system=own.system or None, params=chat_params)
        if own.resume:
            _resume(conversation, own.system)
        state = Chat(conversation, found.params, Screen(output, Display(color=own.color)))
        keeps_history = not own.no_history
        reader = open_reader(completions(), keeps_history=keeps_history)
        code = Repl(state, reader, first=first, saves=keeps_history).run()
        if code == INTERRUPTED:
            end_at_next()
    if code:
        raise typer.Exit(code)


def _resume(conversation: Conversation, system: str | None) -> None:
    """Restore the latest chat; a system prompt that is given now stays. Raises CommandError and PymtpError."""
    path = files.last_chat()
    with explained(f"continue the chat in {path}", "start one without --resume"):
        saved = files.read(read_text_record(path))
    if saved is None:
        raise CommandError(f"{path} is not a saved chat; delete it, and start without --resume")
    conversation.restore(saved.messages)
    conversation.system = system or saved.system
    n = len(saved.messages) // 2
    print_note(f"continuing the latest chat: {n} turn{'s' * (n != 1)}; /show chat shows them")
