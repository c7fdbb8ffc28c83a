"""What makes the embedded model: its templates, and how conversations become rows. Nothing is trained here."""

from __future__ import annotations

import ast
import json
import random
import re
from pathlib import Path

import pytest

from machine import needs_no_gpu
from training import numbers, templates

PROMPTS = Path(templates.__file__).with_name("prompts.jsonl")


def test_templates_alternate_between_user_and_assistant_and_are_the_same_for_a_seed() -> None:
    chats = list(templates.generate(300, 1))
    assert chats == list(templates.generate(300, 1)) != list(templates.generate(300, 2))
    for messages in chats:
        assert [m["role"] for m in messages] == ["user", "assistant"] * (len(messages) // 2)
        assert all(m["content"].strip() for m in messages)


def test_all_questions_have_answers() -> None:
    for name in ("small_talk", "why", "requests"):
        groups = templates.answered(name)
        assert len(groups) > 30
        assert all(questions and replies for questions, replies in groups)


def test_functions_are_python() -> None:
    for heads, code in templates.code_blocks("functions"):
        assert heads and ast.parse(code).body
    for heads, code in templates.code_blocks("how_to"):
        assert not heads[0].endswith("Python") or ast.parse(code.replace("{city}", "x")) is not None


def test_sums_are_right() -> None:
    chance = random.Random(3)
    for _ in range(500):
        question, answer = numbers.arithmetic(chance)
        words = {"plus": "+", "minus": "-", "times": "*", "divided by": "/", " x ": " * ", " is ": " = "}
        for word, sign in words.items():
            answer = answer.replace(word, sign)
        left, right = answer.rstrip(".").split("=")
        assert re.fullmatch(r"[-+*/ \d]+", left), question
        assert eval(left) == float(right), question


def test_code_prints_what_its_answer_says(capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(4)
    for _ in range(200):
        question, answer = numbers.prints(chance)
        code = question.split("\n\n", 1)[1].replace("```python", "").replace("```", "")
        exec(code, {})
        said = answer.removeprefix("It prints").strip(":. \n").strip("`").strip()
        assert capsys.readouterr().out.strip() == said, question


def test_no_template_asks_what_the_evaluation_asks() -> None:
    pytest.importorskip("tokenizers")
    prepare = pytest.importorskip("training.prepare")
    asked = [json.loads(line)["turns"][0] for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    assert len(asked) == 40
    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": "."}] for text in asked]
    other = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "Yes."}]
    assert list(prepare.clean([*chats, other, other])) == [other]


def test_only_what_the_assistant_says_is_learned() -> None:
    pytest.importorskip("tokenizers")
    prepare, batches = pytest.importorskip("training.prepare"), pytest.importorskip("training.batches")
    import numpy as np

    learned = np.array([5, 6], np.uint16)
    asked = np.array([7 | batches.NOT_LEARNED] * 600, np.uint16)
    rows = prepare.pack([np.concatenate([asked, learned])] * 2, 3 | batches.NOT_LEARNED)
    assert rows.shape == (2, batches.ROW)  # a conversation is not cut where a row ends
    assert ((rows < batches.NOT_LEARNED).sum(1) == 2).all()
    torch = pytest.importorskip("torch")
    inputs, targets = batches.split(torch.from_numpy(rows.astype(np.int32)))
    assert inputs[0, :3].tolist() == [7, 7, 7]
    assert targets[targets != batches.IGNORED].tolist() == [5, 6, 5, 6]


@needs_no_gpu
def test_llama_cpp_computes_what_the_trainer_computes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tokenizers")
    from training import parity

    assert max(parity.compare(parity.random_model().eval(), tmp_path)) < parity.TOLERANCE
