"""Processors that threads are bound to: where they really run, and what is refused. Linux says where: /proc."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymtp_cli.app import app
from typer.testing import CliRunner

from families import FAMILIES
from machine import needs_exact_texts
from pymtp import Chunk, ContextParams, InvalidParameter, Model, ModelParams, PymtpError, SamplingParams, Session
from pymtp.embedded import model_path
from pymtp.engine import threads
from pymtp.engine.threads import threads_of
from pymtp.gguf.facts import model_facts
from pymtp.loader import Weights

PROCESSORS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(len(PROCESSORS) < 2 or sys.platform != "linux", reason="needs two processors, on Linux"),
]
A, B = PROCESSORS[0], PROCESSORS[-1]
PROMPT = list(range(300, 400))


def mask(*processors: int) -> str:
    return hex(sum(1 << i for i in processors))


@pytest.fixture(scope="module")
def weights() -> Iterator[Weights]:
    loaded = Weights(model_facts(model_path()), ModelParams(n_gpu_layers=0), with_heads=True)
    yield loaded
    loaded.close()


@contextmanager
def session(weights: Weights, **options: Any) -> Iterator[Session]:
    with Session(weights.model, ContextParams(n_ctx=512, **options), n_draft_max=3) as made:
        yield made


def places(task: Path) -> tuple[int, ...] | None:
    """The processors that a thread may run on; None: it has ended."""
    try:
        found = re.search(r"Cpus_allowed_list:\s*(\S+)", (task / "status").read_text())
    except OSError:
        return None
    assert found
    spans = [part.split("-") for part in found[1].split(",")]
    return tuple(i for span in spans for i in range(int(span[0]), int(span[-1]) + 1))


def during(work: Callable[[], object]) -> dict[int, set[tuple[int, ...]]]:
    """Where the threads of the process may run while `work` does, by their numbers; 0 is the one that runs it."""
    seen: dict[int, set[tuple[int, ...]]] = {}
    own, is_done = threading.get_native_id(), threading.Event()

    def watch() -> None:
        while not is_done.is_set():
            for task in Path("/proc/self/task").iterdir():
                if int(task.name) != threading.get_native_id() and (found := places(task)):
                    seen.setdefault(int(task.name), set()).add(found)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        is_done.set()
        watcher.join()
    seen[0] = seen.pop(own)
    return seen


def prompt(made: Session) -> None:
    made.truncate(0)
    made.decode([Chunk(PROMPT, 0, logits="last", feed=True)])


def rounds(made: Session) -> None:
    """Drafts, and passes that verify them, of an empty sequence."""
    made.truncate(0)
    made.decode([Chunk([1, 2], 0, feed=True)])
    for position in range(2, 80):
        made.draft_tokens([Chunk([7], position, 0)], 3)
        made.decode([Chunk([7, 8, 9, 10], position, logits="all", feed=True)])
        made.truncate(position + 1)


# --- where they run ---


@pytest.mark.parametrize("processor", [A, B])
def test_a_pass_of_one_thread_runs_on_its_processor(weights: Weights, processor: int) -> None:
    with session(weights, n_threads=1, cpu_mask=mask(processor)) as made:
        assert (processor,) in during(lambda: prompt(made))[0]


def test_a_range_and_a_mask_both_count(weights: Weights) -> None:
    with session(weights, n_threads=2, cpu_range=f"{A}-{A}", cpu_mask=mask(B)) as made:
        assert (A, B) in during(lambda: prompt(made))[0]


def test_strict_threads_have_a_processor_each(weights: Weights) -> None:
    with session(weights, n_threads=2, cpu_mask=mask(A, B), cpu_strict=True) as made:
        prompt(made)
        alone: set[tuple[int, ...]] = set()
        for _ in range(50):  # while another program is busy, one of them may compute alone
            found = during(lambda: prompt(made))
            alone |= {place for where in found.values() for place in where if len(place) == 1}
            if {(A,), (B,)} <= alone:
                break
    assert {(A,), (B,)} <= alone


def test_drafts_and_rounds_have_the_same_threads(weights: Weights) -> None:
    with session(weights, n_threads=1, cpu_mask=mask(A), cpu_mask_batch=mask(B)) as made:
        made.decode([Chunk([1, 2], 0, feed=True)])
        found = during(lambda: rounds(made))[0]
    assert (A,) in found
    assert (B,) not in found


def test_prompts_have_threads_of_their_own(weights: Weights) -> None:
    with session(weights, n_threads=1, cpu_mask=mask(A), cpu_mask_batch=mask(B)) as made:
        found = during(lambda: prompt(made))[0]
    assert (B,) in found
    assert (A,) not in found


def test_a_pass_leaves_the_thread_as_it_was(weights: Weights) -> None:
    before = os.sched_getaffinity(0), os.sched_getscheduler(0)
    with session(weights, n_threads=2, cpu_mask=mask(A, B), cpu_strict=True) as made:
        prompt(made)
        assert (os.sched_getaffinity(0), os.sched_getscheduler(0)) == before
    # the threads are the same ones, of which a pass may leave some out
    with session(weights, n_threads=2) as made:
        end = time.monotonic() + 30
        while any(place != tuple(PROCESSORS) for where in during(lambda: prompt(made)).values() for place in where):
            assert time.monotonic() < end


@needs_exact_texts
def test_a_text_does_not_depend_on_processors_and_threads(tmp_path: Path) -> None:
    path = FAMILIES["glm4moe"].write(tmp_path / "tiny.gguf")

    def tokens(**options: Any) -> list[int]:
        with Model(path, n_ctx=256, draft_max=3, n_gpu_layers=0, **options) as model:
            sampling = SamplingParams(temperature=0)
            generation = model.generate(list(range(1, 90)), sampling=sampling, max_tokens=24, ignore_eos=True)
            list(generation)
            return generation.tokens

    alone = tokens(n_threads=1)
    assert tokens(n_threads=1, n_threads_batch=2) == alone
    assert tokens(n_threads=2, cpu_mask=mask(A, B), cpu_strict=True, cpu_mask_batch=mask(B)) == alone


# --- how many there are ---


def test_threads_are_as_many_as_the_processors_have_cores() -> None:
    rounds_, prompts = threads_of(ContextParams(cpu_mask=mask(A), cpu_mask_batch=mask(A, B), n_threads_batch=2))
    assert (rounds_.n_threads, rounds_.processors) == (1, {A})
    assert (prompts.n_threads, prompts.processors) == (2, {A, B})


def test_what_is_not_said_of_prompts_is_as_for_rounds() -> None:
    rounds_, prompts = threads_of(ContextParams(n_threads=1, cpu_mask=mask(A)))
    assert rounds_ == prompts
    assert rounds_.processors
    assert not threads_of(ContextParams(n_threads=2, n_threads_batch=1))[1].processors


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpu_mask": "0xg"}, "cpu_mask must be a hexadecimal number of up to 128 digits, .*, not '0xg'"),
        ({"cpu_mask": ""}, "cpu_mask must be a hexadecimal number"),
        ({"cpu_mask": 3}, "cpu_mask must be a hexadecimal number"),
        ({"cpu_mask": "0"}, "cpu_mask must be of one processor at least, not '0'"),
        ({"cpu_mask_batch": "1" + "0" * 100}, "cpu_mask_batch must be of processors .*, without 400"),
        ({"cpu_range": "3"}, "cpu_range must be two processors, such as 0-3"),
        ({"cpu_range": "3-1"}, "cpu_range must be two processors"),
        ({"cpu_range": "0-99999"}, "cpu_range must be two processors"),
        ({"cpu_range": "0-511"}, "cpu_range must be of processors that the process may use"),
        ({"cpu_mask": mask(A), "n_threads": 2}, "n_threads must be at most 1, as many as cpu_mask and cpu_range have"),
        ({"cpu_mask_batch": mask(A), "n_threads_batch": 2}, "n_threads_batch must be at most 1, .* cpu_mask_batch"),
        ({"cpu_strict": 1}, "cpu_strict must be True or False"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        ContextParams(**options)


def test_a_pool_with_another_number_of_threads_is_refused(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    real = threads.Threads.native
    monkeypatch.setattr(threads.Threads, "native", lambda self, **how: real(self._replace(n_threads=3), **how))
    with (
        pytest.raises(PymtpError, match="3 threads are not the 1 of the context"),
        session(weights, n_threads=1, cpu_mask=mask(A)),
    ):
        pass


def test_the_command_line_names_the_flag() -> None:
    command = ["run", "-n", "1", "Hello"]
    for flags, message in (
        (["-C", "0xz"], "-C"),
        (["-Cr", "0-511"], "-Cr"),
        (["-C", mask(A), "-t", "2"], "-t"),
        (["--cpu-strict", "2"], "--cpu-strict"),
    ):
        done = CliRunner().invoke(app, [*command, *flags], prog_name="pymtp")
        assert done.exit_code == 2
        assert message in done.stderr and len(done.stderr.splitlines()) == 1
    done = CliRunner().invoke(app, [*command, "-Cr", f"{A}-{A}", "-tb", "1"], prog_name="pymtp")
    assert (done.exit_code, bool(done.stdout)) == (0, True)
