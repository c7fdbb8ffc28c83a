"""`pymtp batch`: a file of requests in, a file of answers out.

Owns the flags of a batch. Requests and answers are those of a server, without one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options as opt
from .context import find, note_embedded
from .errors import CommandError
from .output import print_stderr
from .parsers import integer
from .progress import answering
from .sampling import with_sampling

EXAMPLES = """
pymtp batch requests.jsonl -o answers.jsonl
pymtp batch requests.jsonl -o answers.jsonl -m model.gguf -np 16 -c 32768
"""


@with_sampling
@opt.with_model
def batch(
    requests: Annotated[Path, typer.Argument(metavar="IN.jsonl", show_default=False)],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT.jsonl", help="File that answers are appended to.")
    ],
    model_file: opt.ModelFile = None,
    hf_repo: opt.HfRepo = None,
    offline: opt.Offline = False,
    n_slots: Annotated[
        int,
        typer.Option(
            "-np", "--parallel", parser=integer(1, 256), metavar="N", help="Requests that run at the same time."
        ),
    ] = 8,
    max_tokens: opt.NPredict = -1,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Do not count the requests at the end.")] = False,
    debug: opt.Debug = False,
    model_options: Any = None,
    asked: Any = None,
) -> None:
    """Answer the requests of a file in OpenAI's batch format.

    A run that was interrupted continues: requests whose answers are in OUT.jsonl are left out. The same file gives the
    same answers: each sequence is computed on its own, and requests without a seed get one.
    """
    import pymtp
    from pymtp.server import logs
    from pymtp.server.batch import read_requests, run_batch
    from pymtp.server.settings import ServerSettings

    asked.params(max_tokens=max_tokens)  # a wrong flag shows before anything is read
    logs.set_up(is_quiet=True)
    try:
        requested = read_requests(requests)
    except OSError as error:
        raise CommandError(f"cannot read {requests}: {error.strerror}; check the path") from error
    path, _, given = find(
        model_file, hf_repo, offline=offline, model_options=model_options, asked=asked, max_tokens=max_tokens
    )
    n_ctx = model_options["n_ctx"]
    options = {**model_options, "n_ctx": n_ctx and max(n_ctx // n_slots, 1), "n_seq_max": n_slots, "kv_unified": False}
    if given.sampling.seed is None:
        given = replace(given, sampling=replace(given.sampling, seed=0))
    note_embedded(path)
    pymtp.exit_on_abort()
    with answering() as show:
        settings = ServerSettings(params=given, cache_bytes=0, image_rows_max=2**31)
        n_failed = run_batch(lambda: pymtp.Model(path, **options), settings, requested, output, show or _say_nothing)
    if not quiet:
        n = len(requested)
        print_stderr(f"{n} request{'s' * (n != 1)}, {n_failed} of this run failed: see {output}")
    if n_failed:
        raise typer.Exit(1)


def _say_nothing(done: int, total: int) -> None:
    pass
