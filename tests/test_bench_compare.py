"""The comparison with other programs: how it reads their answers, and runs of those that are installed."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from programs.case import Case, Memory, ProgramFailed, Sample
from programs.http_server import server_sample
from programs.one_shot import LlamaBench, LlamaCli, SpeculativeSimple
from programs.process import Process
from programs.python_library import PythonLibrary
from programs.report import plot, report, write_csv
from programs.summary import by_category, raw_rows, summarize
from programs.turns import ProgramResult, Samples, ask_in_turn
from pymtp.benchmark.experiment import Trial
from pymtp.benchmark.prompts import Prompt
from pymtp.benchmark.rows import median_interval
from random_models.tiny import write_tiny

BENCH = Path(__file__).resolve().parent.parent / "bench"
PROGRAMS = BENCH.parent / "build" / "compare" / "bin"


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(
        model=write_tiny(tmp_path / "tiny.gguf"),
        draft_max=2,
        n_predict=24,
        end_tokens=(256,),
        n_ctx=512,
        n_threads=1,
        n_gpu_layers=0,
        sampling={"temperature": 0},
        forced_length=None,
        cuda_shared_bytes=None,
        programs=PROGRAMS,
        logs=tmp_path,
    )


# --- the statistics ---


@pytest.mark.parametrize(
    ("n", "first", "last"),
    # Conover's table for the median: below 6 values no interval has 95 %
    [(1, 1, 1), (5, 1, 5), (6, 1, 6), (9, 2, 8), (10, 2, 9), (20, 6, 15), (25, 8, 18), (40, 14, 27)],
)
def test_the_interval_of_a_median(n: int, first: int, last: int) -> None:
    assert median_interval(list(range(n, 0, -1))) == (first, last)


def answers(*tok_s: float, accepted: int = 6) -> Samples:
    """To two prompts in turn."""
    return {
        Trial(i % 2, i // 2): Sample(
            n_generated=21, tok_s=speed, n_drafted=12, n_accepted=accepted, n_rounds=20 - accepted
        )
        for i, speed in enumerate(tok_s)
    }


PROMPTS = [Prompt("code", "a", [1, 2]), Prompt("prose", "b", [1, 2, 3])]
TITLES = {"one": "One", "other": "Other", "third": "Third"}


def test_ratios_are_medians_over_pairs() -> None:
    # in each pair One is twice as fast; the medians of their speeds have another ratio
    found = [
        ProgramResult("one", answers(200, 20, 2000, 60), Memory(3 * 2**20, None)),
        ProgramResult("other", answers(100, 10, 1000, 30, 77)),  # an answer that One has not
        ProgramResult("third", {}, failure="it fell"),
    ]
    one, other = summarize(found, {"other": "of_other"}, TITLES)
    assert (one["program"], one["tok_s"], one["n"]) == ("One", 130, 4)
    assert (one["of_other"], one["of_other_interval"]) == (2, "2.00-2.00")
    assert other["of_other"] is None and other["n"] == 5
    assert (one["acceptance_rate"], one["host_mib"], one["device_mib"]) == (0.5, 3, None)
    assert one["mean_acceptance_length"] == pytest.approx(20 / 14)


def test_categories_have_rows_of_their_own() -> None:
    found = [ProgramResult("one", answers(200, 30, 200, 30)), ProgramResult("other", answers(100, 10, 100, 10))]
    rows = by_category(found, PROMPTS, {"other": "of_other"}, TITLES)
    assert [(row["category"], row["program"], row["of_other"]) for row in rows] == [
        ("code", "One", 2),
        ("code", "Other", None),
        ("prose", "One", 3),
        ("prose", "Other", None),
    ]


def test_the_report_has_every_answer_and_every_failure(tmp_path: Path) -> None:
    found = [ProgramResult("one", answers(200, 30)), ProgramResult("other", answers(100, 10))]
    references = {"one": "of_plain", "other": "of_draft_mtp"}
    results: dict[str, Any] = {
        "provenance": "a machine",
        "model": "a model",
        "method": "a method",
        "rows": [{"k": 3, **row} for row in summarize(found, references, TITLES)],
        "categories": [{"k": 3, **row} for row in by_category(found, PROMPTS, references, TITLES)],
        "failures": ["K = 3, it fell"],
    }
    text = report(results)
    assert "Left out: K = 3, it fell" in text and text.count("| One ") == 4 and "2.50" in text
    assert max(map(len, text.splitlines())) <= 100

    write_csv(tmp_path / "a.csv", raw_rows(found, PROMPTS, TITLES))
    with (tmp_path / "a.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [(line["program"], line["category"], line["n_prompt"], line["tok_s"]) for line in lines] == [
        ("One", "code", "2", "200"),
        ("One", "prose", "3", "30"),
        ("Other", "code", "2", "100"),
        ("Other", "prose", "3", "10"),
    ]
    pytest.importorskip("matplotlib")
    plot(tmp_path / "a.svg", results["rows"], "a title")
    assert "<svg" in (tmp_path / "a.svg").read_text("utf-8")


# --- output of llama.cpp's programs, word for word ---

SIMPLE = """\
0.00.319.842 I encoded   14 tokens in    0.016 seconds, speed:  895.599 t/s
0.00.319.856 I decoded   67 tokens in    0.225 seconds, speed:  297.516 t/s
0.00.319.856 I
0.00.319.856 I n_draft   = 3
0.00.319.857 I n_predict = 67
0.00.319.857 I n_drafted = 138
0.00.319.857 I n_accept  = 20
"""
BENCH_JSON = '[\n  {\n    "n_gen": 64,\n    "avg_ts": 905.721509,\n    "samples_ts": [ 905.722 ]\n  }\n]\n'


def test_timings_of_the_server() -> None:
    timings = {
        "prompt_n": 13,
        "prompt_per_second": 433.2,
        "predicted_n": 64,
        "predicted_ms": 233.52,
        "predicted_per_second": 269.78,
    }
    assert server_sample(timings) == Sample(64, 269.78, 433.2)
    drafting = server_sample({**timings, "draft_n": 91, "draft_n_accepted": 32})
    assert (drafting.n_drafted, drafting.n_accepted, drafting.n_rounds) == (91, 32, 31)


def test_timings_of_the_others(case: Case) -> None:
    cli = LlamaCli(case).sample("text\n[ Prompt: 986.0 t/s | Generation: 266.1 t/s ]\n\nExiting...")
    assert cli == Sample(24, 266.1, 986.0)
    assert SpeculativeSimple(case).sample(SIMPLE) == Sample(67, 297.516, 895.599, 138, 20, 47)
    assert LlamaBench(case).sample(BENCH_JSON + "a line of the log\n") == Sample(64, 905.721509)
    with pytest.raises(ProgramFailed, match="llama-cli-plain: its output has no timings"):
        LlamaCli(case).sample("Segmentation fault")


# --- processes ---


def test_a_process_that_fails_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    script = "import sys; print('reason', file=sys.stderr); sys.exit(3)"
    process = Process([sys.executable, "-c", script], tmp_path / "falls.log")
    with pytest.raises(ProgramFailed, match=r"falls: it ended with status 3; the last line of .*falls\.log: reason"):
        process.finish(60)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells it")
def test_the_peak_of_memory_is_kept(tmp_path: Path) -> None:
    script = "import time; x = b'x' * (200 << 20); del x; time.sleep(1); print('done')"
    process = Process([sys.executable, "-c", script], tmp_path / "large.log")
    assert process.finish(60) == "done\n"
    peak = process.memory().host_bytes
    assert peak is not None and 200 << 20 < peak < 300 << 20


# --- pymtp, and what else is there ---


def worker(case: Case, draft: str | int, **changes: object) -> PythonLibrary:
    settings = {"draft": draft, **changes}
    return PythonLibrary("pymtp", "pymtp_worker", case, settings)


def test_pymtp_answers_with_and_without_drafts(case: Case) -> None:
    for draft in (2, "none"):
        program = worker(case, draft)
        try:
            samples = [program.answer(Prompt("code", "", list(range(30, 60)))) for _ in range(2)]
            memory = program.memory()
        finally:
            program.close()
        for sample in samples:
            assert sample.n_generated == 24 and sample.tok_s > 0 and sample.prompt_tok_s
        assert memory.host_bytes is None or memory.host_bytes > 10 << 20
        if draft == "none":
            assert samples[0].n_drafted is None
        else:
            assert samples[0].n_drafted == samples[1].n_drafted and samples[0].n_rounds
            assert samples[0].n_accepted is not None and samples[0].n_drafted > samples[0].n_accepted


def test_an_unknown_sampling_field_is_an_error_that_names_it(case: Case) -> None:
    with pytest.raises(ProgramFailed, match=r"pymtp: .*no_such_sampler"):
        worker(case, "none", sampling={"no_such_sampler": 1})


def test_a_program_that_fails_is_left_out_and_the_others_continue(case: Case, tmp_path: Path) -> None:
    prompts = [Prompt("code", "", list(range(30, 40))), Prompt("code", "", list(range(40, 60)))]
    case = replace(case, programs=tmp_path / "nowhere")
    plain, server = ask_in_turn(["pymtp-plain", "server"], case, prompts, 2, inf)
    assert set(plain.samples) == {(0, 0), (1, 0), (0, 1), (1, 1)} and plain.failure is None
    assert not server.samples and server.failure and "cannot run" in server.failure
    # too late for all but the first trial
    assert set(ask_in_turn(["pymtp-plain"], case, prompts, 2, monotonic())[0].samples) == {(0, 0)}


@pytest.mark.skipif(not (PROGRAMS / "llama-server").exists(), reason="llama.cpp's own programs are not built")
def test_programs_side_by_side(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf")
    prompts = tmp_path / "prompts.jsonl"
    items = [
        {"category": "prose", "prompt": "The sea. "},
        {"category": "chat", "messages": [{"role": "user", "content": "Why?"}]},
    ]
    prompts.write_text("".join(json.dumps(item) + "\n" for item in items), "utf-8")
    script = [sys.executable, str(BENCH / "compare.py"), str(model), str(prompts), "--llama-cpp", str(PROGRAMS)]
    names = ["pymtp", "pymtp-plain", "server", "server-plain", "cli-plain", "speculative-simple", "bench"]
    options = ["--programs", *names, "python-llama", "-k", "2", "-n", "24", "--repeat", "1", "--threads", "1"]
    result = subprocess.run(
        [*script, *options, "--out", str(tmp_path / "out")], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2 * (len(names) + 1)
    by_program: dict[str, set[str]] = {}
    for line in lines:
        by_program.setdefault(line["program"], set()).add(line["n_generated"])
        assert float(line["tok_s"]) > 0
    assert by_program["pymtp"] == by_program["llama-server plain"] == by_program["llama-server draft-mtp"] == {"24"}


def test_a_machine_without_llama_cpp_python_can_compare() -> None:
    code = "import sys; sys.modules['llama_cpp'] = None; import compare; print(compare.DEFAULT)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=BENCH, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
