"""`pymtp bench`: how much faster drafting makes a model on this machine, and what it costs.

Owns the order of steps: cheap checks come before a model is loaded; and what is shown on stderr meanwhile.
pymtp.benchmark measures and formats.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pymtp.benchmark import Experiment, Results, Variant, measure, rows
from pymtp.benchmark.experiment import Workload, make_arms
from pymtp.benchmark.measure import Step
from pymtp.benchmark.prompts import BUILT_IN, read_texts
from pymtp.benchmark.report import write
from pymtp.embedded import model_path
from pymtp.errors import require
from pymtp.gguf.facts import model_facts

from .asked import params_of
from .context import find_model, note_embedded, prepare_library, warn_beyond_training
from .flags import Values
from .output import Output, can_redraw, print_note, print_stderr

_VARIED = (
    *("n_seq_max", "n_threads", "n_gpu_layers", "flash_attn", "type_k", "type_v", "n_batch", "n_ubatch"),
    "draft_vocab",
)
"""Parameters of a model of which every combination is measured."""


def bench(own: Values) -> None:
    output = Output()
    prepare_library(own)
    texts, variants = _texts(own), _variants(own)
    arms = make_arms(own.draft_max, own.temperature, own.accept, own.synthetic or [None])
    experiment = Experiment(variants, _tests(own), arms, own.n_repeat, warms_up=not own.no_warmup)
    _check(experiment)
    is_shown = sys.stderr is not None and sys.stderr.isatty() if own.progress is None else own.progress
    if is_shown:
        note_embedded(own.model or own.hf or next(iter(own.model_file), None))
    results = Results()
    try:
        with measuring(is_shown=is_shown) as on_step:
            for _ in measure(experiment, results, texts=texts, on_step=on_step):
                pass
    except KeyboardInterrupt:
        is_any = any(not sample.is_prompt_only for sample in results.samples)
        print_note("stopped; results so far:" if is_any else "stopped")
        raise typer.Exit(130) from None
    finally:
        # also after a run that fails halfway
        _show(results, output, own)


def _texts(own: Values) -> Any:
    """The prompts. Raises BadParameter for flags that contradict each other."""
    if own.prompts and own.synthetic:
        raise typer.BadParameter("--synthetic makes its own prompts: leave out --prompts")
    if own.answers and (own.prompts or own.synthetic):
        raise typer.BadParameter("--answers has prompts of its own: leave out --prompts and --synthetic")
    if own.answers:
        return read_texts(own.answers, with_answers=True)
    return read_texts(own.prompts) if own.prompts else BUILT_IN


def _variants(own: Values) -> tuple[Variant, ...]:
    """Every combination of models and of the ways to load them."""
    paths = [*filter(None, [own.model]), *own.model_file]
    if own.hf or not paths:
        found = find_model(paths[0] if paths else None, own.hf, offline=own.offline)
        paths = [found or str(model_path())]
    settings = product(*(getattr(own, name) or [None] for name in _VARIED))
    given = {**vars(own), "draft_max": None}  # the arms have it
    ways = [params_of(Values(**given | dict(zip(_VARIED, each, strict=True)))) for each in settings]
    return tuple(Variant(Path(path), *way) for path in paths for way in ways)


def _show(results: Results, output: Output, own: Values) -> None:
    found = rows(results)
    if not found:
        return
    if own.form != "md":
        for note in results.notes:
            print_note(note)
    if own.error_form != "none":
        print_stderr(write(own.error_form, found, results.notes).rstrip("\n"))
    if own.form != "none":
        output.write(write(own.form, found, results.notes))


def _tests(own: Values) -> tuple[Workload, ...]:
    work = [(n, 0) for n in own.n_prompt if n] + [(0, n) for n in own.n_gen if n] + own.prompt_gen
    if not work:
        raise typer.BadParameter("there is nothing to measure: give -p, -n or -pg a number above 0")
    return tuple(Workload(n_prompt, n_gen, depth) for depth in own.n_depth for n_prompt, n_gen in work)


def _check(experiment: Experiment) -> None:
    """Raise InvalidParameter for bad values before any model is loaded."""
    infos = {one.path: model_facts(one.path) for one in experiment.variants}  # a bad last one would show late
    for one in experiment.variants:
        n, n_vocab = one.drafting.draft_vocab, infos[one.path].n_vocab
        require(not isinstance(n, int) or n <= n_vocab, "draft_vocab", f"at most {n_vocab} for {one.path.name}", n)
    n_longest = max(test.n_depth + test.n_prompt + test.n_gen for test in experiment.tests)
    for path, info in infos.items():
        warn_beyond_training(n_longest, info.n_ctx_train, f"{path.name}: the longest test has")


@contextmanager
def measuring(*, is_shown: bool) -> Iterator[Callable[[Step], object]]:
    """Yield a function to call with each step. At a terminal steps are one line, which disappears; else a line each."""
    if not is_shown:
        yield lambda step: None
        return
    redraws = can_redraw(sys.stderr)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(20), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not redraws) as progress:
        task = progress.add_task("", total=None)

        def show(step: Step) -> None:
            progress.update(task, description=step.text, completed=step.n_done, total=step.n_all or None)
            if not redraws:
                print_note(step.text)

        yield show
