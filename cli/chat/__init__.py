"""`pymtp chat`: a conversation at a terminal, or line by line through a pipe.

Owns the order of steps, as run.py does; the conversation itself is in repl.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import options as opt
from ..context import note_embedded, note_room, warn_beyond_training
from ..download import find_model
from ..errors import CommandError
from ..output import Output, print_stderr
from ..progress import loading
from ..prompt import checked_text, read_prompt
from ..report import session_block
from ..sampling import with_sampling
from ..template import with_template

if TYPE_CHECKING:
    from pymtp import Conversation, GenerationParams, Model
    from pymtp.gguf.facts import GgufInfo

EXAMPLES = """
pymtp chat model.gguf --color
pymtp chat -hf user/repo:Q4_K_M -sys "You are brief."
pymtp chat --temp 0.3 -c 8192 --draft-max 2
pymtp chat model.gguf --resume
printf 'Hello\\n/stats\\n' | pymtp chat
"""

_Resume = Annotated[bool, typer.Option("--resume", help="Continue the latest chat at a terminal.")]
_NoHistory = Annotated[
    bool, typer.Option("--no-history", help="Save neither what you type nor the chat, which --resume would continue.")
]


@with_template
@with_sampling
@opt.with_model
def chat(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", show_default=False)] = None,
    model_file: opt.ModelFile = None,
    hf_repo: opt.HfRepo = None,
    offline: opt.Offline = False,
    prompt_text: opt.FirstMessage = None,
    prompt_file: opt.FirstMessageFile = None,
    system: opt.SystemPrompt = None,
    max_tokens: opt.NPredict = -1,
    resume: _Resume = False,
    no_history: _NoHistory = False,
    color: opt.Color = False,
    verbose: opt.Verbose = False,
    debug: opt.Debug = False,
    model_options: Any = None,
    asked: Any = None,
    chat_flags: Any = None,
) -> None:
    """Chat with a model.

    /help lists the commands. Ctrl-C stops an answer, a second one quits. From a pipe, each line is a message; a
    backslash at the end continues it on the next line. Sampling values that the model's file recommends replace the
    defaults below.
    """
    output = Output()
    system = checked_text(system, "the system prompt") if system else None
    if model is not None and model_file is not None:
        raise typer.BadParameter(f"give the model as an argument or with -m, not both ({model!r} and {model_file!r})")
    first = read_prompt(prompt_text, prompt_file) if prompt_text is not None or prompt_file is not None else None
    import pymtp

    if not debug:
        pymtp.exit_on_abort()
    others = {"max_tokens": max_tokens, "reasoning_budget": chat_flags.reasoning_budget}
    options = {**model_options, "chat_template": chat_flags.template}
    asked.params(**others)  # a wrong flag shows before a model is downloaded
    path = find_model(model_file or model, hf_repo, offline=offline)
    info = _info(path, chat_flags.template)
    if verbose:
        pymtp.set_log_level("info")

    def open_model(other: str) -> tuple[Model, GenerationParams]:
        other_info = _info(other, chat_flags.template)
        return _load(other, options), asked.params(other_info.sampling, **others)

    params = asked.params(info.sampling, **others)
    loaded = _load(path, options)
    with loaded:
        from .reader import open_reader
        from .repl import Repl
        from .screen import Display, Screen

        note_embedded(path)
        warn_beyond_training(model_options["n_ctx"], info.n_ctx_train)
        _note_drafting(loaded, params, model_options)
        conversation = pymtp.Conversation(loaded, system=system, params=chat_flags.params())
        if resume:
            _resume(conversation, system)
        repl = Repl(
            conversation,
            params,
            screen=Screen(output, Display(color=color)),
            open_reader=lambda completions: open_reader(completions, keeps_history=not no_history),
            open_model=open_model,
            first=first,
            saves=not no_history,
        )
        try:
            code = repl.run()
            if verbose:
                print_stderr(session_block(repl.conversation.model.session))
        finally:
            repl.conversation.model.close()  # /model may have opened another one
    if code:
        raise typer.Exit(code)


def _info(path: str | None, template: str | None) -> GgufInfo:
    from pymtp.embedded import model_path
    from pymtp.gguf.facts import model_facts

    info = model_facts(path or model_path())
    if (template or info.chat_template) is None:
        raise CommandError(f"{path} has no chat template; use it without one: pymtp run {path} --raw")
    return info


def _load(path: str | None, options: dict[str, Any]) -> Model:
    import pymtp

    with loading(path) as on_load:
        return pymtp.Model(path, **options, on_load=on_load)


def _note_drafting(model: Model, params: GenerationParams, options: dict[str, Any]) -> None:
    if model.info.draft_model and not options["draft_model"]:
        print_stderr(f"pymtp: drafting with {model.info.draft_source}")
    note_room(model)
    if note := model.draft_note or (params.draft_note if model.draft_max else None):
        print_stderr(f"pymtp: {note}")


def _resume(conversation: Conversation, system: str | None) -> None:
    """Restore the latest chat; a system prompt that is given now stays. Raises CommandError."""
    from pymtp.text.files import read_text_record

    from . import files

    path = files.last_chat()
    try:
        saved = files.read(read_text_record(path))
    except OSError as error:
        reason = error.strerror
        raise CommandError(f"there is no chat to continue ({path}: {reason}); start one without --resume") from error
    except UnicodeDecodeError:
        saved = None
    if saved is None:
        raise CommandError(f"{path} is not a saved chat; delete it, and start without --resume")
    conversation.restore(saved.messages)
    conversation.system = system or saved.system
    n = len(saved.messages) // 2
    print_stderr(f"pymtp: continuing the latest chat: {n} turn{'s' * (n != 1)}; /show chat shows them")
