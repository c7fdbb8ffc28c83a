"""`pymtp batch`: a file of requests in, a file of answers out.

Requests and answers are those of a server, without one.
"""

from dataclasses import replace

import typer

import pymtp
from pymtp.server import logs
from pymtp.server.batch import read_requests, run_batch
from pymtp.server.settings import ServerSettings

from .context import find, note_embedded, prepare_library
from .flags import Values
from .output import CommandError, print_stderr
from .progress import answering


def batch(own: Values) -> None:
    output, n_slots = own.output, own.n_slots
    logs.set_up(is_quiet=True)
    try:
        requested = read_requests(own.requests)
    except OSError as error:
        raise CommandError(f"cannot read {own.requests}: {error.strerror}; check the path") from error
    path, _, given, options, _ = find(own, own.model_file)
    n_ctx = options["n_ctx"]
    options |= {"n_ctx": n_ctx and max(n_ctx // n_slots, 1), "n_seq_max": n_slots, "kv_unified": False}
    if given.sampling.seed is None:
        given = replace(given, sampling=replace(given.sampling, seed=0))
    note_embedded(path)
    prepare_library(own)
    with answering() as show:
        settings = ServerSettings(params=given, cache_bytes=0, image_rows_max=2**31)
        on_progress = show or (lambda *_: None)
        n_failed = run_batch(lambda: pymtp.Model(path, **options), settings, requested, output, on_progress)
    if not own.quiet:
        n = len(requested)
        print_stderr(f"{n} request{'s' * (n != 1)}, {n_failed} of this run failed: see {output}")
    if n_failed:
        raise typer.Exit(1)
