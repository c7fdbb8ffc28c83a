"""What a benchmark makes of an experiment and of samples: order, pairs, rows, layouts. No model is loaded."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pymtp.benchmark import Row, Variant, measure, rows, tables
from pymtp.benchmark.experiment import Arm, Experiment, Results, Sample, Subject, Trial, Workload, make_arms, trials
from pymtp.benchmark.prompts import BUILT_IN, Prompt, Text, prefix_for, prompts_for, read_texts, synthetic
from pymtp.benchmark.report import write
from pymtp.benchmark.rows import median_ratio
from pymtp.benchmark.tables import narrow
from pymtp.engine.context import ContextParams
from pymtp.errors import InvalidParameter, PymtpError
from pymtp.gguf.facts import model_facts
from pymtp.serving.statistics import Stats
from spread import Spread

PLAIN, DRAFTING = Arm(0), Arm(2)


# --- the experiment ---


def test_plain_decoding_is_an_arm_at_each_temperature_asked_for_or_not() -> None:
    assert make_arms([1, "auto"], [0.0, 1.0]) == (
        *(Arm(0, 0.0), Arm(1, 0.0), Arm("auto", 0.0)),
        *(Arm(0, 1.0), Arm(1, 1.0), Arm("auto", 1.0)),
    )
    assert make_arms([0]) == make_arms([]) == (PLAIN,)
    assert make_arms([0, 2, 0, 2], accept=["match", "rejection"]) == (
        *(PLAIN, Arm(2, accept="match"), Arm(2, accept="rejection")),
    )


def test_every_arm_is_in_every_turn_and_begins_as_often_as_the_others() -> None:
    arms = make_arms([1, 2, 3])
    turns = list(trials(2, 6, arms))
    assert [trial for trial, _ in turns] == [(prompt, repetition) for repetition in range(6) for prompt in range(2)]
    assert all(set(order) == set(arms) for _, order in turns)
    assert Counter(order[0] for _, order in turns) == dict.fromkeys(arms, 3)


def test_a_test_has_the_name_that_llama_bench_gives_it() -> None:
    assert [Workload(512).name, Workload(0, 128).name, Workload(512, 128).name] == ["pp512", "tg128", "pp512+tg128"]
    assert Workload(512, n_depth=4096).name == "pp512 @ d4096"
    with pytest.raises(InvalidParameter):
        Workload()


def test_auto_drafts_fifteen_at_most_and_so_the_plan_needs_as_many() -> None:
    variant = Variant(Path("m.gguf"))
    assert Experiment((variant,), (Workload(1),), make_arms([1, "auto"])).draft_max == 15
    assert Experiment((variant,), (Workload(1),), make_arms([20, "auto"])).draft_max == 20
    assert Experiment((variant,), (Workload(1),), (PLAIN,)).draft_max == 0


# --- the prompts ---


def test_prompts_are_made_as_long_as_the_test_wants_them() -> None:
    texts = [Prompt("code", "", [1, 2, 3]), Prompt("chat", "", [4, 5])]
    assert prompts_for(Workload(n_gen=8), texts) == texts
    assert [prompt.tokens for prompt in prompts_for(Workload(n_prompt=7), texts)] == [[1, 2, 3, 4, 5, 1, 2]]
    # what is answered is the end
    assert [prompt.tokens for prompt in prompts_for(Workload(4, 8), texts)] == [[3, 1, 2, 3], [4, 5, 4, 5]]
    assert prefix_for(Workload(4, n_depth=6), texts) == [1, 2, 3, 4, 5, 1]
    assert prefix_for(Workload(4), texts) == []


def test_the_built_in_prompts_are_of_four_kinds() -> None:
    assert [text.category for text in BUILT_IN] == ["code", "prose", "chat", "reasoning"]


def test_synthetic_prompts_are_the_same_every_time() -> None:
    assert synthetic(100) == synthetic(100) != synthetic(100, seed=2)
    assert all(0 <= token < 100 for prompt in synthetic(100) for token in prompt.tokens)


def test_a_file_of_prompts_has_a_text_or_messages_on_each_line(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        json.dumps({"category": "code", "prompt": "def"})
        + "\n\n"
        + json.dumps({"category": "chat", "messages": messages})
    )
    code, chat = read_texts(path)
    assert (code.category, code.prompt, chat.category, list(chat.messages)) == ("code", "def", "chat", messages)


def test_a_file_of_prompts_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"category": "code", "prompt": "a"}', encoding="utf-8-sig")
    assert [text.prompt for text in read_texts(path)] == ["a"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty; write"),
        ("{", "line 1 is no prompt .Input data"),
        ('{"a":' * 100_000, "line 1 is no prompt .*recursion"),
        ("[]", "line 1 is no prompt .Expected `object`"),
        ('{"prompt": "x"}', "line 1 is no prompt .*`category`"),
        ('{"category": "x", "prompt": "y"}\n{"category": "x"}', "line 2 has no prompt; write"),
        ('{"category": "x", "messages": [{"role": 1, "content": "y"}]}', "line 1 is no prompt"),
        ('{"category": "x", "messages": [{"content": "y"}]}', "line 1 has no prompt; write"),
    ],
)
def test_a_bad_file_of_prompts_names_the_line_and_the_fix(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(PymtpError, match=expected):
        read_texts(path)


def test_pairs_are_read_from_a_pipe_too(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    lines = '{"category": "x", "prompt": "y", "answer": "z"}\n\n{"category": "x", "prompt": "y"}\n'
    writer = threading.Thread(target=path.write_text, args=(lines.splitlines()[0],))
    writer.start()
    assert [pair.answer for pair in read_texts(path, with_answers=True)] == ["z"]
    writer.join()
    (tmp_path / "file").write_text(lines)
    with pytest.raises(PymtpError, match="file, line 3 has no answer; add"):
        read_texts(tmp_path / "file", with_answers=True)


# --- statistics ---


def test_spreads_are_those_of_the_textbooks() -> None:
    assert Spread.of([1, 2, 3, 4, 5]) == (3, 2)
    assert median_ratio([2, 1, 4, 3, 9, 8, 7, 6, 5]) == (5, 2, 8)


def stats_of(n_rounds: int, drafted: int, accepted: int, seconds: float) -> Stats:
    stats = Stats(
        prompt_tokens=10,
        prompt_s=0.1,
        generation_s=seconds,
        draft_s=seconds / 4,
        verify_s=seconds / 2,
        sample_s=seconds / 8,
    )
    for _ in range(n_rounds):
        stats.add_round(drafted, accepted)
    return stats


@pytest.fixture
def results(embedded_model: Path) -> Results:
    """Two kinds of text, two repetitions; drafting is 2, 3, 4 and 5 times as fast, prompts are 20 % slower."""
    variant, test = Variant(embedded_model), Workload(n_gen=12)
    results = Results({variant: Subject(model_facts(embedded_model), "0" * 64, 2, 256)})
    for i in range(4):
        trial, category = Trial(i % 2, i // 2), ("code", "chat")[i % 2]
        for arm, stats, is_prompt_only in (
            (PLAIN, stats_of(0, 0, 0, 0.0), True),
            (PLAIN, stats_of(12, 0, 0, 1.2), False),
            (DRAFTING, replace(stats_of(6, 2, 1, 1.2 / (2 + i)), prompt_s=0.125), False),
        ):
            results.samples.append(Sample(variant, test, arm, trial, category, is_prompt_only, stats, "match"))
    return results


def row(found: list[Row], category: str, k: int) -> Row:
    [one] = [row for row in found if (row.category, row.draft_max) == (category, k)]
    return one


def test_speed_ups_are_those_of_pairs(results: Results) -> None:
    found = rows(results)
    assert [(row.category, row.draft_max) for row in found] == [
        (category, k) for category in ("all", "code", "chat") for k in (0, 2)
    ]
    drafting = row(found, "all", 2)
    assert (drafting.speedup, drafting.speedup_low, drafting.speedup_high) == pytest.approx((3.5, 2, 5))
    assert row(found, "code", 2).speedup == pytest.approx(3)
    assert (row(found, "all", 0).avg_ts, row(found, "all", 0).stddev_ts) == pytest.approx((10, 0))
    assert row(found, "all", 0).speedup is None
    # machines that drift cannot change a ratio: both of a pair are slower then
    for i in (4, 5):
        results.samples[i].stats.generation_s *= 7
    assert row(rows(results), "all", 2).speedup == pytest.approx(3.5)


def test_a_row_says_what_was_accepted_and_what_a_round_takes(results: Results) -> None:
    drafting = row(rows(results), "all", 2)
    assert (drafting.drafted, drafting.accepted, drafting.rounds) == (48, 24, 24)
    assert (drafting.acceptance_rate, drafting.mean_acceptance_length) == (0.5, 2)
    assert drafting.acceptance_per_position == (1, 0)
    assert row(rows(results), "code", 0).draft_ms == pytest.approx(25)
    assert row(rows(results), "code", 0).verify_ms == pytest.approx(50)
    assert row(rows(results), "code", 0).sample_ms == pytest.approx(12.5)
    assert row(rows(results), "code", 0).python_ms == pytest.approx(12.5)


def test_prompts_are_held_against_a_session_without_mtp(results: Results) -> None:
    drafting = row(rows(results), "all", 2)
    assert (drafting.prompt_ts, drafting.prompt_ts_without_mtp) == pytest.approx((80, 100))
    assert drafting.mtp_prompt_cost == pytest.approx(0.2)


def test_a_prompt_and_what_follows_are_timed_together(results: Results) -> None:
    results.samples = [replace(sample, test=Workload(10, 12)) for sample in results.samples]
    assert row(rows(results), "all", 0).avg_ts == pytest.approx(22 / 1.3)


def test_what_was_stopped_at_any_sample_still_has_rows(results: Results) -> None:
    everything = results.samples
    for n in range(len(everything)):
        results.samples = everything[:n]
        found = rows(results)
        assert sum(row.n_samples for row in found if row.category != "all" or n < 5) >= (n > 1)
        if found:
            assert write("md", found)


@pytest.mark.model
def test_arms_take_turns_on_what_the_test_says_and_nothing_else(embedded_model: Path) -> None:
    test, results = Workload(16, 4, n_depth=40), Results()
    arms = make_arms([1, "auto"])
    experiment = Experiment((Variant(embedded_model, context=ContextParams(n_threads=1)),), (test,), arms, n_repeat=2)
    texts = [Text("prose", "The sea was calm.")]
    samples = list(measure(experiment, results, texts=texts))
    assert samples == results.samples
    alone, together = samples[:2], samples[2:]
    assert [(sample.is_prompt_only, sample.arm, sample.trial) for sample in alone] == [
        (True, PLAIN, (0, repetition)) for repetition in (0, 1)
    ]
    assert [sample.arm for sample in together] == [*arms, *arms[1:], arms[0]]
    # neither what lies in the cache before, nor the token that comes with the prompt
    assert {sample.stats.prompt_tokens for sample in samples} == {16}
    assert [sample.stats.round_tokens for sample in samples] == [0] * 2 + [4] * 6


# --- layouts ---


def test_every_format_for_programs_has_every_field(results: Results) -> None:
    found = rows(results)
    names = [*vars(found[0])]
    lines = [json.loads(line) for line in write("jsonl", found).splitlines()]
    assert lines == json.loads(write("json", found))
    assert [list(line) for line in lines] == [names] * len(found)
    assert lines[1]["speedup"] == pytest.approx(3.5)
    table = list(csv.reader(io.StringIO(write("csv", found))))
    assert table[0] == names and {len(line) for line in table} == {len(names)}
    assert table[2][names.index("acceptance_per_position")] == "1.0000 0.0000"
    assert write("none", found) == ""


def test_markdown_is_readable_at_100_columns_also_where_everything_varies(results: Results) -> None:
    [variant] = results.subjects
    results.samples = [replace(sample, test=Workload(16384, 12, 16384)) for sample in results.samples]
    for sample in list(results.samples):
        if sample.arm == DRAFTING:
            arm = Arm(2, 1.25, "rejection-tokenwise")
            results.samples.append(replace(sample, arm=arm))
    found = rows(results)
    text = write("md", found)
    assert max(map(len, text.splitlines())) <= 100
    for word in ("speed-up |", "rejection-tokenwise", "1.00 0.00", "By kind of text:", "0" * 64, "llama.cpp b"):
        assert word in text


def test_output_that_is_not_the_models_says_so(results: Results) -> None:
    assert "not valid model output" not in write("md", rows(results))
    results.samples = [replace(s, arm=replace(s.arm, forced_rate=0.5)) for s in results.samples if s.arm == DRAFTING]
    found = rows(results)
    assert write("md", found).startswith("Drafts were accepted at random")
    assert not any(row.is_valid_text for row in found)


def test_columns_that_do_not_fit_go_into_another_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table: list[dict[str, Any]] = [{"a": 1, "b": 22, "c": 333, "d": None}, {"a": 2, "b": None, "c": 4, "d": None}]
    columns = [[(name, name, "d") for name in "bc"], [("d", "d", "d")]]
    assert len(narrow([("a", "a", "d")], columns, table)) == 1
    monkeypatch.setattr(tables, "COLUMNS", 12)
    first, second = narrow([("a", "a", "d")], columns, table)
    # rows and columns without any value are left out
    assert first.splitlines() == ["| a |  b |", "|--:|---:|", "| 1 | 22 |"]
    assert second.splitlines() == ["| a |   c |", "|--:|----:|", "| 1 | 333 |", "| 2 |   4 |"]


# --- the verdict ---


def judged(results: Results, *gains: float, k: int = 2) -> str:
    """The last sentence of a report on a draft length that is `gains` times as fast, pair by pair."""
    [variant] = results.subjects
    test, arm, results.samples = Workload(n_gen=12), Arm(k), []
    for i, gain in enumerate(gains):
        for one, seconds in ((PLAIN, 1.2), (arm, 1.2 / gain)):
            results.samples.append(
                Sample(variant, test, one, Trial(0, i), "code", False, stats_of(12, 0, 0, seconds), "match")
            )
    report = " ".join(write("md", rows(results)).split())
    return report[report.rindex("Verdict") :]


def test_a_report_ends_with_what_to_do(results: Results) -> None:
    spread = [1.2, 1.21, 1.22, 1.23, 1.24, 1.25, 1.26]
    assert judged(results, *spread) == (
        "Verdict (tg12, temperature 0): drafting pays: K = 2 makes 1.23 (1.20-1.26) times the speed of plain decoding."
    )
    assert "leave drafting off (--draft none): K = 2 makes 0.82 (" in judged(results, *(2.05 - gain for gain in spread))
    assert "drafting gains nothing" in judged(results, *(gain - 0.25 for gain in spread))
    assert "too large to be sure (-r: more repetitions)" in judged(results, *spread[:3])
    assert "too large to be sure" in judged(results, 0.5, 0.6, *spread)
    assert "K = 2 makes 1.20 times" in judged(results, 1.2)  # one pair has no interval
    results.samples.append(
        replace(results.samples[-1], trial=Trial(0, 9))
    )  # nor has one of two samples, if it was stopped
    assert "1.20 (" not in write("md", rows(results))


def test_several_models_are_judged_one_by_one_and_shown_side_by_side(results: Results) -> None:
    [variant] = results.subjects
    other = replace(variant, context=ContextParams(n_batch=64))
    results.subjects[other] = replace(results.subjects[variant], n_threads=1)
    results.samples += [replace(sample, variant=other) for sample in results.samples]
    report = write("md", rows(results))
    assert report.count("Verdict (") == 2
    table = report.partition("All of them:")[2].partition("K: draft")[0]
    assert table.count("| tg12 |") == 0  # the same everywhere
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in table.splitlines() if line.startswith("|")]
    assert cells[0] == ["threads", "b", "K"]
    assert cells[2:] == [["2", "2048", "0"], ["2", "2048", "2"], ["1", "64", "0"], ["1", "64", "2"]]
