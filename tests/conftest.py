"""Fixtures that several test files share. The tests run against the installed package."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

REPOSITORY = Path(__file__).resolve().parent.parent

# A thread that waits for others leaves its core to other workers, in which more threads compute than there are cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "0")  # read where llama.cpp is loaded
# NumPy's matrix products would start a thread for each core, which spins: in every process of a test, for nothing.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Where Python may not write next to its sources, workers and the processes of tests would compile all that they import.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(REPOSITORY / "build" / "pycache"))
if "PYTHONPYCACHEPREFIX" in os.environ:
    sys.dont_write_bytecode, sys.pycache_prefix = False, os.environ["PYTHONPYCACHEPREFIX"]
os.environ.pop("COLUMNS", None)  # a test for which the width of a terminal counts sets its own

import llama_cpp  # noqa: E402, F401  # takes llama.cpp's log, so before pymtp, which takes it over

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as in the background of a shell; child processes would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


N_WORKERS_MAX = 8
"""Processes of `pytest -n auto`: each loads models of its own."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMIUM_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--at-least", type=int, default=0, help="fail if fewer tests than this were run, not skipped")
    parser.addoption("--shuffle", type=int, help="run files, and the tests of a file, in a random order of this seed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One for each core that this process may use."""
    from pymtp.engine.cores import n_cores

    return min(n_cores(), N_WORKERS_MAX)


def values_of(item: pytest.Item) -> set[tuple[object, ...]]:
    """The values that a test is run with: those of each `parametrize`, and of each fixture that has some."""
    params = dict(getattr(getattr(item, "callspec", None), "params", {}))
    found = set[tuple[object, ...]]()
    for mark in item.iter_markers("parametrize"):
        names = [name.strip() for name in mark.args[0].split(",")] if isinstance(mark.args[0], str) else mark.args[0]
        found.add(tuple((name, id(params.pop(name))) for name in names if name in params))
    return found | {(name, id(value)) for name, value in params.items()}


def leave_each_value(items: list[pytest.Item]) -> None:
    """Mark as slow what the fast tier leaves out: of a test with more combinations it runs each value."""
    by_test: dict[str, list[tuple[pytest.Item, set[tuple[object, ...]]]]] = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            by_test.setdefault(item.nodeid.partition("[")[0], []).append((item, values_of(item)))
    for left in by_test.values():
        if len(left[0][1]) < 2:
            continue
        missing = set[tuple[object, ...]]().union(*(values for _, values in left))
        while missing:
            most = max(left, key=lambda pair: len(pair[1] & missing))
            missing -= most[1]
            left = [pair for pair in left if pair is not most]
        for item, _ in left:
            item.add_marker(pytest.mark.slow)


N_FAMILIES_MANY, N_TESTS_MANY = 10, 6


def leave_a_third_of_families(items: list[pytest.Item]) -> None:
    """Mark as slow two thirds of what remains where many tests of a file take each of many families of models.

    The first of these tests keeps all families. Each other one keeps a third, and each family a third of them, in turn.
    """
    by_name: dict[tuple[Path, str], dict[str, dict[str, list[pytest.Item]]]] = {}  # then by test, and by family
    for item in items:
        for name, value in getattr(getattr(item, "callspec", None), "params", {}).items():
            if isinstance(value, str) and not item.get_closest_marker("slow"):
                tests = by_name.setdefault((item.path, name), {})
                tests.setdefault(item.nodeid.partition("[")[0], {}).setdefault(value, []).append(item)
    for tests in by_name.values():
        many = [by_family for by_family in tests.values() if len(by_family) >= N_FAMILIES_MANY]
        families = list(dict.fromkeys(family for by_family in many for family in by_family))
        for i, by_family in enumerate(many[1:] if len(many) >= N_TESTS_MANY else ()):
            for family, left_out in by_family.items():
                if (i + families.index(family)) % 3:
                    for item in left_out:
                        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: the search for garbage would go through it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_each_value(items)
    leave_a_third_of_families(items)
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))
    if config.option.shuffle is None:
        return
    chance = random.Random(config.option.shuffle)
    files = [list(tests) for _, tests in groupby(items, lambda item: item.path)]
    chance.shuffle(files)
    for tests in files:
        chance.shuffle(tests)
    items[:] = [test for tests in files for test in tests]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tests that are skipped in mass, or were not found, are not a success."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    at_least = session.config.option.at_least
    if reporter is None or not at_least:  # a worker has no reporter of its own
        return
    n_run = sum(len(reporter.stats.get(outcome, [])) for outcome in ("passed", "failed"))
    if n_run < at_least:
        reporter.write_line(f"\nonly {n_run} tests were run, at least {at_least} are needed", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """The log of a test's servers does not go to what stderr was in an earlier one, which pytest has closed."""
    loggers = [logging.getLogger(name) for name in ("pymtp.server", "uvicorn")]
    before = [(each.handlers, each.propagate, each.level) for each in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The GGUF that comes with the package: step35, 16 layers and 1 MTP head, ChatML template."""
    from pymtp.embedded import model_path

    return model_path()


@pytest.fixture(scope="session")
def shared() -> Path:
    """More models and prompts: the folder `PYMTP_TEST_DATA`, else one beside the repository; skips without it."""
    folder = Path(os.environ.get("PYMTP_TEST_DATA", REPOSITORY.parent / "shared"))
    if not (folder / "models").is_dir():
        pytest.skip(f"no test data at {folder}")
    return folder


@pytest.fixture(scope="session")
def dev_prompts(shared: Path) -> list[dict[str, object]]:
    """The development prompts: `{"category": ..., "messages": [...]}` each."""
    lines = (shared / "prompts" / "dev.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What fixtures record that tests share is not the user's either."""
    folder = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "shared"))
        yield folder


@pytest.fixture(autouse=True)
def cache_of_the_test(caches: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test records is not the user's, and what it drafts does not depend on those before it."""
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches / name))


@pytest.fixture(scope="session", autouse=True)
def commands_are_made_once() -> Iterator[None]:
    """`CliRunner.invoke` would make all commands of their functions each time: longer than most tests take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command), raising=False)
        yield


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a small GGUF: `write_gguf(declared=1, heads=1, n_layer=2, name="tiny.gguf", **metadata)`."""
    from tiny_gguf import write

    def write_here(name: str = "tiny.gguf", **options: object) -> Path:
        return write(tmp_path / name, **options)  # type: ignore[arg-type]

    return write_here


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser, headless Chromium; skips where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages with storage of their own, and fails the test if one of them reports an error in its console."""
    problems: list[str] = []
    contexts = []

    def new(url: str, *, errors_expected: bool = False, **options: Any) -> Any:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        if not errors_expected:
            page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(url)
        return page

    yield new
    for context in contexts:
        context.close()
    assert problems == []
