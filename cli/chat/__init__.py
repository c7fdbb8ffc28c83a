"""`pymtp chat`: a conversation at a terminal, or line by line through a pipe.

Owns the order of steps, as run.py does; the conversation itself is in repl.py.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .. import options as opt
from ..context import warn_beyond_training
from ..download import find_model
from ..errors import CommandError
from ..output import Output, print_stderr
from ..progress import loading
from ..prompt import checked_text
from ..report import session_block
from ..sampling import with_sampling

EXAMPLES = """
pymtp chat model.gguf
pymtp chat -hf user/repo:Q4_K_M -sys "You are brief."
pymtp chat --temp 0.3 -c 8192 --draft-max 2
printf 'Hello\\n/stats\\n' | pymtp chat
"""


@with_sampling
@opt.with_model
def chat(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", show_default=False)] = None,
    model_file: opt.ModelFile = None,
    hf_repo: opt.HfRepo = None,
    offline: opt.Offline = False,
    system: opt.SystemPrompt = None,
    max_tokens: opt.NPredict = -1,
    verbose: opt.Verbose = False,
    debug: opt.Debug = False,
    model_options: Any = None,
    params: Any = None,
) -> None:
    """Chat with a model.

    /help lists the commands. Ctrl-C stops an answer, twice quits. From a pipe, each line is a message; a backslash at
    the end continues it on the next line.
    """
    output = Output()
    system = checked_text(system, "the system prompt") if system else None
    if model is not None and model_file is not None:
        raise typer.BadParameter(f"give the model as an argument or with -m, not both ({model!r} and {model_file!r})")
    import pymtp
    from pymtp.embedded import model_path
    from pymtp.gguf.facts import inspect_gguf

    if not debug:
        pymtp.exit_on_abort()
    generation_params = pymtp.GenerationParams(**params, max_tokens=max_tokens)
    path = find_model(model_file or model, hf_repo, offline=offline)
    info = inspect_gguf(path or model_path())
    if info.chat_template is None:
        raise CommandError(f"{path} has no chat template; use it without one: pymtp run {path} --raw")
    if verbose:
        pymtp.set_log_level("info")
    with loading(path) as on_load:
        loaded = pymtp.Model(
            path,
            **model_options,
            on_load=on_load,
        )
    with loaded:
        from .reader import open_reader
        from .repl import Repl
        from .screen import Screen

        warn_beyond_training(model_options["n_ctx"], info.n_ctx_train)
        if loaded.info.draft_model and not model_options["draft_model"]:
            print_stderr(f"pymtp: drafting with {loaded.info.draft_source}")
        note = loaded.draft_note or (generation_params.draft_note if loaded.draft_max else None)
        if note:
            print_stderr(f"pymtp: {note}")
        conversation = pymtp.Conversation(loaded, system=system)
        code = Repl(conversation, generation_params, screen=Screen(output), open_reader=open_reader).run()
        if verbose:
            print_stderr(session_block(loaded.session))
    if code:
        raise typer.Exit(code)
