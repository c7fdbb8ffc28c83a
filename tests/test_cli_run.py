"""`pymtp run` against a fake model: what it passes on, what it prints, how it fails."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from pymtp_cli.app import app
from pymtp_cli.asked import escaped, unescaped
from pymtp_cli.report import speedup_text, stats_block
from pymtp_cli.table import flags_of
from typer.testing import CliRunner

from fake_pymtp import FakeModel, Script, install
from pymtp import ContextParams, DraftParams, ModelParams
from pymtp.errors import BackendError, ContextFull, InvalidParameter, PymtpError, UnsupportedModel
from pymtp.options import Params, merge_options
from pymtp.sampling.params import SamplingParams
from pymtp.serving.statistics import Stats

Run = Callable[..., Any]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Script:
    monkeypatch.chdir(tmp_path)
    script = Script()
    install(script, monkeypatch.setitem)
    return script


@pytest.fixture
def run(script: Script) -> Run:
    def invoke(*arguments: str, stdin: bytes | None = None) -> Any:
        return CliRunner().invoke(app, ["run", *arguments], input=stdin, prog_name="pymtp")

    return invoke


def sent_prompt() -> str:
    return str(FakeModel.calls[-1]["prompt"])


def one_line(result: Any, *, code: int = 1) -> str:
    """Check that a run failed with nothing on stdout and return its one line."""
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("pymtp: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return str(result.stderr)


def test_text_goes_to_stdout_and_the_stats_to_stderr(run: Run) -> None:
    result = run("hi")
    assert (result.exit_code, result.stdout) == (0, "Hello\n")
    assert result.stderr == (
        "model:        the embedded one, a toy of 60 million parameters (-m or -hf names another)\n"
        "ended:        eog, by the model\n"
        "prompt:       4 tokens, 8.0 tok/s\n"
        "generation:   2 tokens, 4.0 tok/s\n"
        "drafts:       2 of 4 accepted (50%), by match\n"
        "by position:  100%, 0%\n"
        "rounds:       2, of 2.00 tokens each on average\n"
        "speed-up:     not known, as the text is too short; plain decoding makes about 2 tok/s here\n"
    )


@pytest.mark.parametrize(
    ("seconds", "plain_tok_s", "answer"),
    [
        (4.0, 8.0, "1.50x; plain decoding makes about 8 tok/s here"),
        (6.0, 8.0, "1.00x (no gain); plain decoding makes about 8 tok/s here"),
        (12.0, 8.0, "0.50x (a loss);"),
        (4.0, None, "not known, as no round was plain; pymtp bench compares"),
    ],
)
def test_whether_drafting_pays_is_its_speed_over_that_of_plain_decoding(
    seconds: float, plain_tok_s: float | None, answer: str
) -> None:
    stats = Stats(generated_tokens=48, generation_s=seconds)
    for _ in range(24):
        stats.add_round(1, 1)
    assert speedup_text(stats, plain_tok_s).startswith(answer)


def test_one_accepted_draft_does_not_look_like_a_share_of_the_text() -> None:
    stats = Stats(generated_tokens=118, generation_s=0.14)
    stats.add_round(1, 1)
    for _ in range(115):
        stats.add_round(0, 0)
    shown = stats_block(stats, "match", 830)
    assert "1 of 1 accepted (100%), by match" in shown and "116, of 1.01 tokens each on average" in shown


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("length", "length (-n)"),
        ("context", "context full (-c)"),
        ("stop", "stop text (--stop)"),
    ],
)
def test_the_statistics_say_why_the_text_ended(run: Run, script: Script, reason: str, words: str) -> None:
    script.finish_reason = reason
    assert f"\nended:        {words}\n" in run("hi").stderr


def test_json_is_one_object_and_nothing_else(run: Run, embedded_model: Path) -> None:
    result = run("hi", "--json")
    assert (result.exit_code, result.stderr.count("\n")) == (0, 1)
    assert result.stderr.startswith("pymtp: no model given: this is the embedded one, a toy")
    assert run("hi", "--json", "-m", str(embedded_model)).stderr == run("hi", "--json", "-q").stderr == ""
    assert json.loads(result.stdout) == {
        "text": "Hello",
        "reasoning": None,
        "tokens": [0, 1],
        "prompt_tokens": 4,
        "prompt_tok_s": 8,
        "generated_tokens": 2,
        "generation_tok_s": 4,
        "rounds": 2,
        "drafted": 4,
        "accepted": 2,
        "acceptance_rate": 0.5,
        "mean_acceptance_length": 2,
        "acceptance_per_position": [1, 0],
        "finish_reason": "eog",
        "draft_max": "auto",
        "accept": "match",
        "model": str(embedded_model),
        "pin": "pymtp 0 (fake)",
    }


def test_flags_reach_the_model_and_the_sampler(run: Run, embedded_model: Path) -> None:
    flags = "-n 5 -c 512 -b 64 -ub 32 -t 3 -ngl 0 -fa on -ctk q8_0 -ctv q4_0"
    drafts = "--draft mtp --draft-model heads.gguf --draft-max 2 --draft-vocab 4000"
    drafts += " --mtp-context target"
    chain = "--samplers top_k;min_p;temp --temp 0 --top-k 7 --top-p 0.5 --min-p 0.1 --typical 0.9 --top-nsigma 2"
    more = "--xtc-probability 0.5 --xtc-threshold 0.2 --dynatemp-range 0.3 --dynatemp-exp 2 -l 15+15e-1 -l 3-inf"
    penalties = "--repeat-last-n 9 --repeat-penalty 1.1 --presence-penalty 0.2 --frequency-penalty 0.3"
    dry = "--dry-multiplier 0.8 --dry-base 2 --dry-allowed-length 3 --dry-penalty-last-n -1 --dry-sequence-breaker \\n"
    text = "-s 9 --ignore-eos -r END --stop \\n\\n --draft-pick sample --accept rejection"
    every = " ".join((flags, drafts, chain, more, penalties, dry, text)).split()
    assert run("hi", *every).exit_code == 0
    model, generate = FakeModel.calls
    assert (model.pop("path"), model.pop("on_load")) == (str(embedded_model), None)
    defaults = Params(ModelParams(), ContextParams(), DraftParams())
    expected = {
        "n_ctx": 512,
        "n_batch": 64,
        "n_ubatch": 32,
        "n_threads": 3,
        "n_gpu_layers": 0,
        "flash_attn": "on",
        "type_k": "q8_0",
        "type_v": "q4_0",
        "draft": "mtp",
        "draft_model": "heads.gguf",
        "draft_max": 2,
        "draft_vocab": 4000,
        "mtp_context": "target",
    }
    assert merge_options(defaults, model) == merge_options(defaults, expected)
    assert (generate["max_tokens"], generate["ignore_eos"]) == (5, True)
    assert (generate["stop"], generate["draft_pick"], generate["accept"]) == (("END", "\n\n"), "sample", "rejection")
    assert generate["sampling"] == SamplingParams(
        samplers=("top_k", "min_p", "temperature"),
        seed=9,
        temperature=0,
        top_k=7,
        top_p=0.5,
        min_p=0.1,
        typical_p=0.9,
        top_n_sigma=2,
        xtc_probability=0.5,
        xtc_threshold=0.2,
        dynatemp_range=0.3,
        dynatemp_exponent=2,
        logit_bias={15: 1.5, 3: -math.inf},
        repeat_last_n=9,
        repeat_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        dry_multiplier=0.8,
        dry_base=2,
        dry_allowed_length=3,
        dry_penalty_last_n=-1,
        dry_sequence_breakers=("\n",),
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (r"\n", "\n"),
        (r"\\n", r"\n"),
        (r"\"a\"\t", '"a"\t'),
        (r"C:\\temp", r"C:\temp"),
        (r"\d", r"\d"),
        ("\\", "\\"),
    ],
)
def test_escapes_in_a_stop_text_are_read_once_from_left_to_right(run: Run, typed: str, meant: str) -> None:
    assert run("hi", "--stop", typed).exit_code == 0
    assert FakeModel.calls[1]["stop"] == (meant,)
    assert unescaped(escaped(meant)) == meant


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--samplers top_k;foo", "--samplers: must be different names out of penalties, dry"),
        ("--sampler-seq kz", "--sampler-seq/--sampling-seq: must be made of the letters edskypmxtia, not 'kz'"),
        ("--sampler-seq k --samplers top_k", "--sampler-seq/--sampling-seq: must be given without --samplers"),
        ("-l 5", "-l/--logit-bias: must be TOKEN_ID+BIAS or TOKEN_ID-BIAS, not '5'"),
        ("--grammar a --grammar-file b", "--grammar: must be given as a text or in a file, not both"),
        ("--mirostat 3", "--mirostat: must be 0 (off), 1 or 2, not 3"),
    ],
)
def test_flags_that_say_nonsense_are_usage_errors(run: Run, flags: str, message: str) -> None:
    assert message in one_line(run("hi", *flags.split()), code=2)
    assert FakeModel.calls == []


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ("-n5", "max_tokens", 5),
        ("-n=5", None, None),
        ("-n -1", "max_tokens", -1),
        ("--n-predict=6", "max_tokens", 6),
        ("-ub 64", "n_ubatch", 64),
        ("-ub=64", "n_ubatch", 64),
        ("-b64", "n_batch", 64),
        ("-c512", "n_ctx", 512),
        ("-ctk f32", "type_k", "f32"),
        ("-t2", "n_threads", 2),
        ("-ngl 7", "n_gpu_layers", 7),
        ("-ngl -1", "n_gpu_layers", -1),
        ("-ngl all", "n_gpu_layers", -2),
        ("-ngl -2", "n_gpu_layers", -2),
        ("-ngl -9", "n_gpu_layers", -2),
        ("-ngl auto", "n_gpu_layers", -1),
        ("-fa 1", "flash_attn", "on"),
        ("-fa 0", "flash_attn", "off"),
        ("-fa -1", "flash_attn", "auto"),
        ("--spec-draft-n-max 1", "draft_max", 1),
    ],
)
def test_short_flags_do_not_shadow_each_other(run: Run, flags: str, name: str | None, value: object) -> None:
    result = run(*flags.split(), "hi")
    if name is None:
        one_line(result, code=2)
        return
    assert result.exit_code == 0, result.stderr
    assert {**FakeModel.calls[0], **FakeModel.calls[1]}[name] == value
    assert "hi" in sent_prompt()


def test_defaults_are_those_of_the_python_api(run: Run) -> None:
    run("hi")
    model, generate = FakeModel.calls
    assert (model["n_ctx"], model["draft"], model["draft_max"]) == (None, "auto", "auto")
    assert (generate["max_tokens"], generate["ignore_eos"]) == (-1, False)
    assert generate["sampling"] == SamplingParams(temperature=0.2, repeat_penalty=1.05)  # the embedded model's own
    run("hi", "--temp", "0.8", "--repeat-penalty", "1")
    assert FakeModel.calls[-1]["sampling"] == SamplingParams()


@pytest.mark.parametrize("flags", ["--draft none", "--draft-max 0", "--draft auto --draft-max 0"])
def test_drafting_can_be_turned_off_two_ways(run: Run, flags: str) -> None:
    assert run(*flags.split(), "hi").exit_code == 0
    assert FakeModel.calls[0]["draft"] == "none"


def test_any_model_can_be_told_to_draft_by_lookup(run: Run) -> None:
    assert run("--draft", "lookup", "--draft-max", "6", "hi").exit_code == 0
    assert (FakeModel.calls[0]["draft"], FakeModel.calls[0]["draft_max"]) == ("lookup", 6)


def test_a_draft_length_that_does_nothing_is_said(run: Run) -> None:
    assert (
        "pymtp: --draft-max 3 does nothing with --draft none\n"
        in run("--draft", "none", "--draft-max", "3", "hi").stderr
    )
    assert "does nothing" not in run("--draft", "none", "hi").stderr


@pytest.mark.parametrize("word", ["on", "off", "auto"])
def test_color_may_have_a_word_as_in_llama_cpp(run: Run, word: str) -> None:
    assert run("--color", word, "hi").exit_code == run("-co", word, "-p", "hi").exit_code == 0
    assert sent_prompt() == "<user>hi<assistant>"


def test_a_prompt_may_end_with_the_name_of_a_model(run: Run) -> None:
    assert run("Explain what is in model.gguf").exit_code == 0
    assert "Explain what is in model.gguf" in sent_prompt()
    assert "model.gguf: no such file" in one_line(run("model.gguf"))


@pytest.mark.parametrize("seed", ["-1", None])
def test_seed_minus_one_is_random_as_is_no_seed(run: Run, seed: str | None) -> None:
    assert run("hi", *(["-s", seed] if seed else [])).exit_code == 0
    assert FakeModel.calls[-1]["sampling"].seed is None


def test_positionals(run: Run, embedded_model: Path) -> None:
    path = str(embedded_model)
    for arguments, stdin in [
        ([path, "hi"], None),
        ([path], b"hi"),
        (["-m", path, "hi"], None),
        (["hi", "--model", path], None),
        (["--model", path], b"hi"),
    ]:
        assert run(*arguments, stdin=stdin).exit_code == 0
        assert (FakeModel.calls[-2]["path"], sent_prompt()) == (path, "<user>hi<assistant>")


def test_a_lone_positional_is_a_model_only_if_it_looks_like_one(run: Run, tmp_path: Path, embedded_model: Path) -> None:
    assert run("no such file, just words").exit_code == 0
    assert FakeModel.calls[0]["path"] == str(embedded_model)
    assert "missing.gguf: no such file" in one_line(run("missing.gguf", stdin=b"hi"))
    line = one_line(run(str(tmp_path), stdin=b"hi"))
    assert "is a directory; name the .gguf file inside it, or, if it is a prompt, use -p" in line
    assert run("x" * 100_000).exit_code == 0


def test_the_prompt_may_be_given_by_flag(run: Run, embedded_model: Path) -> None:
    path = str(embedded_model)
    for arguments in (["-p", "hi"], [path, "--prompt", "hi"], ["-m", path, "-p", "hi"]):
        result = run(*arguments, stdin=b"unread")
        assert (result.exit_code, FakeModel.calls[-2]["path"]) == (0, path)
        assert sent_prompt() == "<user>hi<assistant>"
        assert ("the embedded one" in result.stderr) == (path not in arguments)
    for arguments in ([path, "two", "-p", "hi"], ["-m", path, "two", "-p", "hi"]):
        assert "with -p the prompt is given already; leave out 'two'" in one_line(run(*arguments), code=2)
    assert "in one of these ways" in one_line(run("-p", "hi", "-f", "prompt.txt"), code=2)


def test_a_system_prompt_comes_first(run: Run, write_gguf: Callable[..., Path]) -> None:
    assert run("-sys", "Be brief.", "hi").exit_code == 0
    assert sent_prompt() == "<system>Be brief.<user>hi<assistant>"
    assert "leave out --raw or -sys" in one_line(run("hi", "--raw", "--system-prompt", "x"), code=2)
    assert "has no chat template, which a system prompt needs" in one_line(run(str(write_gguf()), "hi", "-sys", "x"))


def test_quiet_prints_no_statistics(run: Run, script: Script) -> None:
    script.note = "plain decoding"
    for flag in ("-q", "--quiet"):
        result = run("hi", flag)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello\n", "pymtp: plain decoding\n")


def test_a_context_beyond_what_the_model_was_trained_with(run: Run) -> None:
    result = run("hi", "-q", "-c", "2049")
    line = "a context of 2049 tokens, but the model was trained with 2048: what lies beyond may make no sense"
    assert (result.exit_code, result.stderr) == (0, f"pymtp: {line}\n")
    assert run("hi", "-q", "-c", "2048").stderr == run("hi", "-q", "-c", "0").stderr == ""


def test_with_m_a_second_positional_is_one_too_many(run: Run, embedded_model: Path) -> None:
    assert "'two'" in one_line(run("-m", str(embedded_model), "one", "two"), code=2)


def test_the_prompt_may_come_from_a_file_or_from_stdin(run: Run, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("from a file\n\n", encoding="utf-8")
    assert run("--raw", "-f", "prompt.txt", stdin=b"unread").exit_code == 0
    assert sent_prompt() == "from a file\n"
    assert run("--raw", stdin="stdin, \u65e5\u672c\n".encode()).exit_code == 0
    assert sent_prompt() == "stdin, \u65e5\u672c"
    assert run("--raw", "-f", "-", stdin=b"from a pipe\n").exit_code == 0
    assert sent_prompt() == "from a pipe"


def test_a_byte_order_mark_is_not_part_of_a_prompt(run: Run, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("from an editor", encoding="utf-8-sig")
    assert run("--raw", "-f", "prompt.txt").exit_code == 0
    assert sent_prompt() == "from an editor"


def test_raw_and_a_model_without_a_template_take_the_prompt_as_it_stands(run: Run, script: Script) -> None:
    run("hi")
    assert sent_prompt() == "<user>hi<assistant>"
    run("hi", "--raw")
    assert sent_prompt() == "hi"
    script.template = False
    run("hi")
    assert sent_prompt() == "hi"


def test_a_model_that_decodes_plainly_says_why_on_stderr(run: Run, script: Script) -> None:
    script.note = "this memory is not shared yet: plain decoding"
    result = run("hi")
    assert result.stdout == "Hello\n"
    assert result.stderr.startswith("pymtp: this memory is not shared yet: plain decoding\n")


@pytest.mark.parametrize("stdin", [b"", b"\n"])
def test_an_empty_prompt(run: Run, stdin: bytes) -> None:
    assert "the prompt is empty" in one_line(run(stdin=stdin))
    assert "the prompt is empty" in one_line(run(""))
    assert FakeModel.calls == []


def test_a_prompt_that_is_not_utf8(run: Run, tmp_path: Path) -> None:
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9!")
    assert "latin1.txt is not valid UTF-8 (byte 3)" in one_line(run("-f", "latin1.txt"))
    assert "stdin is not valid UTF-8 (byte 3)" in one_line(run(stdin=b"caf\xe9!"))
    assert "not valid UTF-8" in one_line(run("caf\udce9"))
    assert FakeModel.calls == []


@pytest.mark.parametrize(
    ("flag", "names"),
    [
        ("--grammar", "--grammar"),
        ("-j", "-j/--json-schema"),
        ("--stop", "-r/--stop/--reverse-prompt"),
        ("--dry-sequence-breaker", "--dry-sequence-breaker"),
        ("-sys", "-sys/--system-prompt"),
    ],
)
def test_a_flag_whose_text_is_not_utf8(run: Run, flag: str, names: str) -> None:
    line = one_line(run("hi", flag, "caf\udce9"), code=2)
    assert line.startswith(f"pymtp: Invalid value for {names}: must be valid UTF-8; convert it first (iconv -t UTF-8)")
    assert FakeModel.calls == []


def test_text_in_utf8_is_read_in_any_locale(run: Run) -> None:
    accented = "caf\u00e9"
    as_ascii = accented.encode().decode("ascii", "surrogateescape")
    assert run(as_ascii, "--raw", "--stop", as_ascii, "--thinking-tags", as_ascii, "b").exit_code == 0
    call = FakeModel.calls[-1]
    assert (call["prompt"], call["stop"], call["thinking_tags"]) == (accented, (accented,), (accented, "b"))


def test_a_prompt_file_that_cannot_be_read(run: Run, tmp_path: Path) -> None:
    assert "No such file" in one_line(run("-f", "missing.txt"))
    assert "directory" in one_line(run("-f", str(tmp_path)))
    assert "in one of these ways" in one_line(run("hi", "-f", "missing.txt"), code=2)
    assert "File name too long" in one_line(run("-f", "x" * 5000))
    if os.path.exists("/dev/zero"):  # it never ends
        assert "it is longer than 64 MiB; check the path" in one_line(run("-f", "/dev/zero"))


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--draft-max 33", "--spec-draft-n-max/--draft-max: must be auto or an integer between 0 and 32, not '33'"),
        ("--draft-max abc", "--spec-draft-n-max/--draft-max: must be auto or an integer between 0 and 32, not 'abc'"),
        ("--spec-draft-n-max -1", "--spec-draft-n-max/--draft-max: must be auto or an integer between 0 and 32, not"),
        ("--draft maybe", "--spec-type/--draft: must be one of auto, mtp, lookup, none, not 'maybe'"),
        ("-ctk q9_9", "-ctk/--cache-type-k: must be one of f32, f16, bf16, q8_0,"),
        ("-ctv q9_9", "-ctv/--cache-type-v: must be one of f32, f16, bf16, q8_0,"),
        ("-fa perhaps", "-fa/--flash-attn: must be one of on, off, auto, not 'perhaps'"),
        ("-n -2", "-n/--n-predict: must be an integer between -1 and 2147483647, not '-2'"),
        ("-n many", "-n/--n-predict: must be an integer between -1 and 2147483647, not 'many'"),
        ("-c 2147483648", "-c/--ctx-size: must be an integer between 0 and 2147483647, not '2147483648'"),
        ("-ub 0", "-ub/--ubatch-size: must be an integer between 1 and"),
        ("-t 100000", "-t/--threads: must be an integer between 1 and 512, not '100000'"),
        ("-s 4294967296", "-s/--seed: must be an integer between -1 and 4294967295, not"),
        ("-s abc", "-s/--seed: must be an integer between -1 and 4294967295, not 'abc'"),
        ("--top-k 1.5", "--top-k: must be an integer, 0 (off) or more, not '1.5'"),
        ("--temp hot", "--temp/--temperature: must be 0 or more, not 'hot'"),
    ],
)
def test_a_wrong_value_is_a_usage_error_that_names_the_flag_and_the_range(run: Run, flags: str, text: str) -> None:
    line = one_line(run(*flags.split(), "hi"), code=2)
    assert line.startswith(f"pymtp: Invalid value for {text}")
    assert line.endswith(" (see pymtp run --help)\n")
    assert FakeModel.calls == []


@pytest.mark.parametrize("flags", ["--no-such-flag", "--raw=yes", "-fa", "-m"])
def test_wrong_usage_points_to_the_help_of_the_command(run: Run, flags: str) -> None:
    assert one_line(run("hi", flags), code=2).endswith(" (see pymtp run --help)\n")


def test_a_parameter_that_the_core_refuses_is_a_usage_error_too(run: Run, script: Script) -> None:
    line = "pymtp: Invalid value for {} (see pymtp run --help)\n"
    assert one_line(run("hi", "--temp", "-1"), code=2) == line.format(
        "--temp/--temperature: must be 0 or more, not -1.0"
    )
    assert FakeModel.calls == []
    script.load_error = InvalidParameter("type_v", "f32 or f16 without flash attention", value="q8_0")
    expected = line.format("-ctv/--cache-type-v: must be f32 or f16 without flash attention, not 'q8_0'")
    assert one_line(run("hi"), code=2) == expected


def test_what_no_flag_sets_is_no_usage_error(run: Run, script: Script) -> None:
    script.load_error = InvalidParameter("prompt", "at least one token long")
    assert one_line(run("hi")) == "pymtp: prompt must be at least one token long\n"


def test_every_parameter_of_the_core_has_its_name_in_the_command() -> None:
    from pymtp import GenerationParams

    parameters = {flag.name for flag in flags_of("run")}
    for function in (ContextParams, SamplingParams, ModelParams, DraftParams, GenerationParams):
        # the command runs one text; min_keep has no flag in llama.cpp either; forced is for benchmarks
        ours = {"sampling", "n_seq_max", "kv_unified", "min_keep", "forced", "cache_prompt"}
        ours |= {
            "n_cells",
            "n_ctx_max",
            "slot",
            "n_keep",
            "chat",
            "cache_scope",
            "draft_owner",
        }  # those of servers and of chats
        assert set(signature(function).parameters) - ours <= parameters


def test_a_fatal_assertion_ends_in_one_line_unless_debugging(run: Run, script: Script) -> None:
    run("hi", "--debug")
    assert not script.exits_on_abort
    run("hi")
    assert script.exits_on_abort


def test_a_text_file_named_as_the_model_may_be_a_prompt(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some notes", encoding="utf-8")
    assert "-f notes.txt" in one_line(run("notes.txt", stdin=b""))


@pytest.mark.parametrize("error", [UnsupportedModel("no heads; use --draft none"), BackendError("no memory\nfor it")])
def test_an_error_of_the_core_is_one_line(run: Run, script: Script, error: PymtpError) -> None:
    script.load_error = error
    assert " ".join(str(error).split()) in one_line(run("hi"))


def test_debug_shows_the_traceback_before_the_line(run: Run, script: Script) -> None:
    script.load_error = UnsupportedModel("no heads; use --draft none")
    result = run("hi", "--debug")
    assert result.exit_code == 1
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith("pymtp: no heads; use --draft none\n")


def test_an_error_while_the_prompt_is_processed_leaves_stdout_empty(run: Run, script: Script) -> None:
    script.pieces = []
    script.generate_error = ContextFull("the prompt has 9 tokens, the context 8; raise --ctx-size")
    assert "raise --ctx-size" in one_line(run("hi"))
    assert "raise --ctx-size" in one_line(run("hi", "--json"))


def test_an_error_in_the_middle_leaves_no_half_json(run: Run, script: Script) -> None:
    script.generate_error = BackendError("the device is gone")
    one_line(run("hi", "--json"))


def test_a_bug_is_not_dressed_up_as_a_user_error(run: Run, script: Script) -> None:
    script.load_error = ZeroDivisionError("bug")
    assert isinstance(run("hi").exception, ZeroDivisionError)


def test_version_and_help() -> None:
    for arguments in (["--help"], ["-h"], []):
        result = CliRunner().invoke(app, arguments)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "run" in result.stdout
    help_text = CliRunner().invoke(app, ["run", "--help"]).stdout
    assert "-ctk, --cache-type-k" in help_text
    assert CliRunner().invoke(app, ["nonsense"]).exit_code == 2


def test_version_is_the_libraries_one_line(script: Script) -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert re.fullmatch(r"pymtp 0 \(fake\); computes on (.*, )?CPU\n", result.stdout)
