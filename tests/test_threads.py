"""One model, many threads and tasks; the embedded model, on streams of their own so that texts are exact."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from machine import needs_exact_texts, needs_no_gpu
from pymtp import Closed, Generation, Model, PymtpError, StateError

pytestmark = pytest.mark.model

PROMPTS = ["Once upon a time", "def add(a, b):", "The sea is", "Why is the sky blue?", "import os\n"]
OPTIONS = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    with Model(n_ctx=256, n_threads=1, draft="none") as model:
        return {prompt: "".join(model.generate(prompt, **OPTIONS)) for prompt in PROMPTS}


@pytest.fixture(params=[1, 4], ids=["one place", "four places"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    with Model(n_ctx=256, n_threads=1, draft_max=2, n_seq_max=request.param, kv_unified=False) as loaded:
        yield loaded


def run(*targets: object) -> list[BaseException]:
    """All targets at once, each in a thread; what they raised."""
    errors: list[BaseException] = []

    def guarded(target: object) -> None:
        try:
            target()  # type: ignore[operator]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return errors


@needs_exact_texts
def test_four_threads_share_a_model(model: Model, alone: dict[str, str]) -> None:
    def talk() -> None:
        for prompt in PROMPTS:
            assert "".join(model.generate(prompt, **OPTIONS)) == alone[prompt]

    assert run(*[talk] * 4) == []
    assert model.stats.accepted > 0


@needs_exact_texts
def test_twenty_tasks_share_a_model(model: Model, alone: dict[str, str]) -> None:
    async def talk(prompt: str) -> None:
        pieces = [piece async for piece in model.generate(prompt, **OPTIONS)]
        assert "".join(pieces) == alone[prompt]

    async def main() -> None:
        await asyncio.gather(*(talk(PROMPTS[i % len(PROMPTS)]) for i in range(20)))

    asyncio.run(main())


@needs_exact_texts
def test_a_second_generation_leaves_the_first_its_text(model: Model, alone: dict[str, str]) -> None:
    first = model.generate(PROMPTS[0], **OPTIONS)
    start = next(first)
    assert "".join(model.generate(PROMPTS[1], **OPTIONS)) == alone[PROMPTS[1]]
    assert start + "".join(first) == alone[PROMPTS[0]]
    assert first.finish_reason == "length"


def test_closing_a_model_while_threads_generate_ends_them_with_a_clear_error(model: Model) -> None:
    started = threading.Barrier(5)

    def talk() -> None:
        generation: Generation = model.generate("Once", ignore_eos=True, max_tokens=10_000)
        next(generation)
        started.wait(60)
        "".join(generation)
        for _ in range(1000):  # it may have ended by itself
            "".join(model.generate("Once", ignore_eos=True))

    def close() -> None:
        started.wait(60)
        model.close()

    places = model.params.context.n_seq_max
    if places < 4:
        started = threading.Barrier(2)
    errors = run(close, *[talk] * min(places, 4))
    assert len(errors) == min(places, 4)
    assert all(isinstance(error, Closed) and "closed" in str(error) for error in errors), errors


def test_a_session_in_use_is_reached_through_the_engines_thread(model: Model) -> None:
    running = model.generate("Once", ignore_eos=True)
    next(running)
    saved = model.call(model.session.save)
    assert saved.startswith(b"pymtp-state ")
    running.close()


FORK = """
import os, sys
from pymtp import Model
with Model(n_ctx=256, n_threads=1) as model:
    child = os.fork()
    text = "".join(model.generate("Once upon", max_tokens=8, temperature=0))
    if child == 0:
        os._exit(0 if text else 3)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

FORK_AMID = """
import os, sys
from pymtp import Model, PymtpError
with Model(n_ctx=256, n_threads=1) as model:
    running = model.generate("Once upon", max_tokens=200, ignore_eos=True)
    next(running)
    child = os.fork()
    if child == 0:
        try:
            model.generate("Once")
        except PymtpError as error:
            if "forked" not in str(error):
                os._exit(3)
        try:
            "".join(running)
        except PymtpError as error:
            os._exit(0 if "forked" in str(error) else 4)
        os._exit(5)
    "".join(running)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


FORK_AMID_A_CALL = """
import os, sys, threading, time
from pymtp import Model, PymtpError
with Model(n_ctx=256, n_threads=1) as model:
    began = threading.Event()
    other = threading.Thread(target=model.call, args=(lambda: began.set() or time.sleep(1),))
    other.start()
    began.wait()
    child = os.fork()
    if child == 0:
        try:
            model.generate("Once")
        except PymtpError as error:
            os._exit(0 if "forked" in str(error) else 3)
        os._exit(4)
    other.join()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@needs_no_gpu
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("code", [FORK, FORK_AMID, FORK_AMID_A_CALL], ids=["idle", "amid a generation", "amid a call"])
def test_after_a_fork_both_go_on_or_are_told(code: str) -> None:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr


EXIT = """
from pymtp import Model
model = Model(n_ctx=256, n_threads=1)
generation = model.generate("Once upon", ignore_eos=True)
print(next(generation))
"""


def test_a_process_that_ends_amid_a_generation_ends_quietly() -> None:
    result = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_errors_of_a_closed_model_are_pymtps() -> None:
    model = Model(n_ctx=256, n_threads=1)
    model.close()
    for call in (lambda: model.generate("x"), lambda: model.tokenize("x"), model.__enter__):
        with pytest.raises(PymtpError, match="closed"):
            call()


def test_a_model_can_be_closed_while_threads_tokenize() -> None:
    for _ in range(3):
        model = Model(n_ctx=256, n_threads=1)
        started = threading.Barrier(3)

        def tokenize(model: Model = model, started: threading.Barrier = started) -> None:
            started.wait(60)
            while True:
                model.tokenize("one two three four " * 500)

        def close(model: Model = model, started: threading.Barrier = started) -> None:
            started.wait(60)
            model.close()

        errors = run(close, tokenize, tokenize)
        assert [type(error) for error in errors] == [Closed, Closed]


@needs_exact_texts
def test_a_restored_state_leaves_nothing_known_of_the_cache(tmp_path: Path) -> None:
    with Model(n_ctx=256, n_threads=1) as model:
        one, other = [5, 6, 7] * 9, [8, 9, 10] * 9
        options = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
        expected = _tokens(model, other, **options)
        _tokens(model, one, cache_prompt=True, **options)
        model.slots.save_file(tmp_path / "one")
        _tokens(model, other, cache_prompt=True, **options)
        model.slots.restore_file(tmp_path / "one")
        assert _tokens(model, other, cache_prompt=True, **options) == expected
        running = model.generate("Once", ignore_eos=True)
        next(running)
        with pytest.raises(StateError, match="while texts are generated"):
            model.slots.restore_file(tmp_path / "one")
        running.close()


def _tokens(model: Model, prompt: list[int], **options: Any) -> list[int]:
    generation = model.generate(prompt, **options)
    "".join(generation)
    return generation.tokens


def test_a_text_cannot_be_awaited_in_the_engines_thread() -> None:
    with Model(n_ctx=256, n_threads=1) as model, pytest.raises(PymtpError, match="in the engine's own thread"):
        model.call(lambda: "".join(model.generate("Once", max_tokens=5)))


@needs_exact_texts
def test_a_generation_goes_from_one_event_loop_to_another(model: Model, alone: dict[str, str]) -> None:
    generation = model.generate(PROMPTS[0], **OPTIONS)

    async def first() -> str:
        return await anext(aiter(generation))

    async def rest() -> str:
        return "".join([piece async for piece in generation])

    assert asyncio.run(first()) + asyncio.run(rest()) == alone[PROMPTS[0]]


def test_a_thread_that_cannot_start_leaves_the_model_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Model(n_ctx=256, n_threads=1) as model:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                model.generate("Once")
        assert len(_tokens(model, [5, 6, 7], max_tokens=3, ignore_eos=True)) == 3


@needs_exact_texts
def test_numbers_that_no_vocabulary_has_disturb_nobody(model: Model, alone: dict[str, str]) -> None:
    running = model.generate(PROMPTS[0], **OPTIONS)
    "".join(model.generate("Once", top_k=2**31 - 1, max_tokens=2))
    assert "".join(running) == alone[PROMPTS[0]]


def test_a_text_without_a_limit_ends_with_the_context() -> None:
    with Model(n_ctx=64, n_threads=1) as model:
        for n in (1, 2):
            generation = model.generate([5] * n, ignore_eos=True)
            "".join(generation)
            assert (generation.finish_reason, len(generation.tokens)) == ("context", 65 - n)
