"""The sampling that a GGUF recommends: read as llama.cpp reads it, used where nothing else is asked for, and shown."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymtp_cli.app import app
from typer.testing import CliRunner

from fake_pymtp import FakeModel, Script, install
from pymtp import Conversation, Model, SamplingParams
from pymtp.binding.library import library_file
from pymtp.gguf.facts import model_facts
from pymtp.sampling.recommended import recommended_sampling

WriteGguf = Callable[..., Path]
EVERYTHING = {
    "sequence": "top_k;Min-P;temp",
    "temp": 0.3,
    "top_k": 20,
    "top_p": 0.8,
    "min_p": 0.01,
    "xtc_probability": 0.1,
    "xtc_threshold": 0.2,
    "penalty_last_n": -1,
    "penalty_repeat": 1.1,
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.2,
}


def test_every_key_of_llama_cpp_sets_a_field(write_gguf: WriteGguf) -> None:
    info = model_facts(write_gguf(sampling=EVERYTHING))
    assert SamplingParams(**recommended_sampling(info.sampling)) == SamplingParams(
        samplers=("top_k", "min_p", "temperature"),
        temperature=0.3,
        top_k=20,
        top_p=0.8,
        min_p=0.01,
        xtc_probability=0.1,
        xtc_threshold=0.2,
        repeat_last_n=-1,
        repeat_penalty=1.1,
        mirostat=2,
        mirostat_tau=4.0,
        mirostat_eta=0.2,
    )


@pytest.mark.model
def test_the_keys_are_those_that_the_pinned_llama_cpp_names() -> None:
    from pymtp.sampling import recommended

    name_of = ctypes.CDLL(str(library_file())).llama_model_meta_key_str  # of each llama_model_meta_key
    name_of.restype = ctypes.c_char_p
    names = [name.decode() for i in range(32) if (name := name_of(i))]
    prefix = "general.sampling."
    assert {name for name in names if name.startswith(prefix)} == {prefix + key for key in recommended._FIELDS}


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ({"temp": "0.25 or so"}, {"temperature": 0.25}),
        ({"temp": 1}, {"temperature": 1.0}),
        ({"temp": -1.0, "top_k": -1}, {"temperature": 0, "top_k": 0}),
        ({"top_k": 40.0}, {"top_k": 40}),
        ({"top_k": "17"}, {"top_k": 17}),
        ({"temp": 0.30000001192092896}, {"temperature": 0.3}),
        ({"colour": 3}, {}),
    ],
)
def test_numbers_are_read_from_what_the_value_looks_like_as_text(
    values: dict[str, object], fields: dict[str, object]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert recommended_sampling(values) == fields


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"top_p": 7.0}, "general.sampling.top_p of the GGUF is ignored: .* must be between 0 and 1, not 7.0"),
        ({"temp": "hot"}, "general.sampling.temp of the GGUF is ignored"),
        ({"mirostat": 9}, "general.sampling.mirostat of the GGUF is ignored"),
        ({"sequence": "top_k;magic"}, "names 'magic', which is no sampler"),
    ],
)
def test_a_value_that_makes_no_sense_is_said_and_left_out(values: dict[str, object], message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        fields = recommended_sampling(values)
    assert fields in ({}, {"samplers": ("top_k",)})


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    install(Script(), monkeypatch.setitem)
    return lambda *arguments: CliRunner().invoke(app, ["run", *map(str, arguments)], prog_name="pymtp")


def test_a_flag_comes_before_the_file_and_the_file_before_the_defaults(
    run: Callable[..., Any], write_gguf: WriteGguf
) -> None:
    path = write_gguf(sampling={"temp": 0.3, "top_k": 7})
    assert run("--raw", "--top-k", 5, path, "hi").exit_code == 0
    assert FakeModel.calls[-1]["sampling"] == SamplingParams(temperature=0.3, top_k=5)
    assert run("--raw", "--temp", 0.8, "--top-k", 40, path, "hi").exit_code == 0  # also one that repeats a default
    assert FakeModel.calls[-1]["sampling"] == SamplingParams()


def test_what_two_of_them_contradict_is_one_line(run: Callable[..., Any], write_gguf: WriteGguf) -> None:
    path = write_gguf(sampling={"mirostat": 1})
    result = run("--raw", "--samplers", "adaptive_p", path, "hi")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "--mirostat: must be 0 where adaptive_p is among the samplers" in result.stderr


def test_inspect_shows_it(write_gguf: WriteGguf) -> None:
    def shown(path: Path) -> str:
        return CliRunner().invoke(app, ["inspect", str(path)]).stdout

    assert "sampling:        temperature 0.3, top_k 7 (recommended" in shown(
        write_gguf(sampling={"temp": 0.3, "top_k": 7})
    )
    assert "sampling:" not in shown(write_gguf())


@pytest.mark.model
def test_the_embedded_model_is_loaded_with_its_own() -> None:
    with Model(n_ctx=64) as model:
        assert model.defaults.sampling == SamplingParams(temperature=0.2, repeat_penalty=1.05)
        answers = {"".join(model.generate("def add(", seed=3, max_tokens=12)) for _ in range(2)}
        explicit = model.generate("def add(", temperature=0.2, repeat_penalty=1.05, seed=3, max_tokens=12)
        assert answers == {"".join(explicit)}
        asked = Conversation(model).ask("Hello", max_tokens=1)._request
        assert asked.sampling == model.defaults.sampling
