"""What grammars of JSON schemas allow: JSON that fits, whatever is in their strings, unless they name what they ignore.

Texts are drawn from a grammar by the sampler, from random logits in which what JSON escapes is likely.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_archive import texts
from pymtp import ChatParams, ChatTemplate
from pymtp.binding.arrays import Logits
from pymtp.chat.schema import grammar_of_schema
from pymtp.errors import InvalidParameter, PymtpError
from pymtp.loader import Weights
from pymtp.loading.vocabulary import Vocabulary
from pymtp.sampling.chain import Sampler
from pymtp.sampling.params import SamplingParams
from pymtp.sampling.rules import AnswerRules

TEMPLATES = texts("models/templates", ".jinja")
QUESTION = [{"role": "user", "content": "Hello"}]
ODD = ["\\.", "\\[", "\\]", "/", "a", "é", "-", " ", "'", "\\n", ".", '"']
"""Characters of patterns, of which the last three are ignored."""
CLASSES = ["[a-z]", "[A-F0-9_]", "[ab.-]", "[^a]"]


@pytest.fixture(scope="module")
def vocabulary(embedded_model: Path) -> Iterator[Vocabulary]:
    from pymtp.gguf.facts import model_facts
    from pymtp.loading.params import ModelParams

    weights = Weights(model_facts(embedded_model), ModelParams(), with_heads=False)
    yield Vocabulary(weights.model, None)
    weights.close()


def random_pattern(chance: random.Random, depth: int = 2) -> str:
    """Without ^ and $."""
    parts = []
    for _ in range(chance.randint(1, 3)):
        kind = chance.random()
        if depth and kind < 0.2:
            parts.append("(" + "|".join(random_pattern(chance, depth - 1) for _ in range(2)) + ")")
        else:
            parts.append(chance.choice(CLASSES if kind < 0.6 else ODD))
        parts[-1] += chance.choice(["", "", "", "+", "?", "{2}", "{1,3}"])
    return "".join(parts)


def random_schema(chance: random.Random, depth: int = 2) -> dict[str, Any]:
    kind = chance.choice(["pattern", "pattern", "string", "enum", "object", "array"][: 6 if depth else 4])
    if kind == "pattern":
        return {"type": "string", "pattern": f"^{random_pattern(chance)}$"}
    if kind == "string":
        return {"type": "string", "maxLength": chance.randint(1, 4)}
    if kind == "enum":
        return {"enum": [chance.choice(['a"', "\\", "\n", "\x01é", 3, None]), True]}
    if kind == "array":
        return {"type": "array", "items": random_schema(chance, depth - 1), "maxItems": 2}
    names = chance.sample(['"', "\\", "a", "ab", "a\\", "]", "^x", "\n", "é", "-"], 2)
    properties = {name: random_schema(chance, depth - 1) for name in names}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is of such a schema, of those that are made here."""
    if "enum" in schema:
        return value in schema["enum"]
    if schema["type"] == "string":
        pattern = schema.get("pattern", "^(?:.|\\s)*$")
        return (
            isinstance(value, str)
            and bool(re.fullmatch(pattern[1:-1], value))
            and len(value) <= schema.get("maxLength", 10**9)
        )
    if schema["type"] == "array":
        return isinstance(value, list) and len(value) <= 2 and all(fits(one, schema["items"]) for one in value)
    properties = schema["properties"]
    return isinstance(value, dict) and all(
        name in properties and fits(one, properties[name]) for name, one in value.items()
    )


class Drawn:
    """Draws texts of a grammar."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        pieces = [vocabulary.special_piece(token) for token in range(vocabulary.size)]
        self._vocabulary, self._pieces = vocabulary, pieces
        self._odd = np.array([5.0 * any(c in b'"\\\x01\n\t]' for c in piece[:3]) for piece in pieces], np.float32)
        self._odd -= np.array([20.0 * (piece.isspace() and b"\n\n" not in piece) for piece in pieces], np.float32)
        ends = [piece.strip() in (b'"', b"}", b"]", b'"}', b'"]') for piece in pieces]
        self._ends = np.array([30.0 * is_end for is_end in ends], np.float32)
        self._ends[list(vocabulary.end_of_generation)] = 40.0

    def text(self, grammar: str, seed: int, prefill: str = "", n_free: int = 12) -> bytes | None:
        """None: it has not come to an end, or is one that can be followed in too many ways."""
        params = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, seed=seed)
        sampler = Sampler(params, self._vocabulary, rules=AnswerRules(grammar, prefill=prefill))
        noise, text = np.random.default_rng(seed), b""
        for i in range(200):
            logits: Logits = noise.normal(scale=2, size=self._vocabulary.size).astype(np.float32)
            try:
                token = sampler.sample(logits + self._odd + self._ends * (i > n_free))
            except PymtpError as error:
                assert "too many ways" in str(error)
                return None
            if token in self._vocabulary.end_of_generation:
                return text
            text += self._pieces[token]
        return None


@pytest.mark.parametrize("n_schemas", [20, pytest.param(600, marks=pytest.mark.slow)])
def test_what_a_grammar_allows_is_json_that_fits_its_schema(vocabulary: Vocabulary, n_schemas: int) -> None:
    drawn, n_texts = Drawn(vocabulary), 0
    for seed in range(n_schemas):
        schema = random_schema(random.Random(seed))
        try:
            grammar = grammar_of_schema(schema)
        except InvalidParameter:
            continue
        for i in range(4):
            text = drawn.text(grammar, 10 * seed + i)
            if text is None:
                continue
            n_texts += 1
            shown = text.decode(errors="replace")  # as a text is shown: a grammar lets bytes through that are no UTF-8
            try:
                value = json.loads(shown)
            except ValueError as error:
                raise AssertionError(f"{schema} allows {shown!r}: {error}\n{grammar}") from None
            assert "\ufffd" in shown or fits(value, schema), f"{schema} allows {shown!r}\n{grammar}"
    assert n_texts > 2 * n_schemas


def allows(vocabulary: Vocabulary, grammar: str, text: str) -> bool:
    logits = np.zeros(vocabulary.size, np.float32)
    logits[list(vocabulary.end_of_generation)] = 100
    try:
        sampler = Sampler(SamplingParams(temperature=0), vocabulary, rules=AnswerRules(grammar, prefill=text))
        return sampler.sample(logits) in vocabulary.end_of_generation
    except PymtpError:
        return False


CITY = {"type": "object", "properties": {"city": {"enum": ["Ulm", "Rom"]}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("weather", "clock")]
NAMED: Any = {"type": "function", "function": {"name": "clock"}}
CALL = '<tool_call>\n{"name": "clock", "arguments": {"city": "Ulm"}}\n</tool_call>\n'


@pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not at hand: run make")
@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ({"tool_choice": "required", "parallel_tool_calls": True}, [1, 2]),
        ({"tool_choice": "required", "parallel_tool_calls": False}, [1]),
        ({"tool_choice": NAMED}, [1]),
        ({"tool_choice": NAMED, "parallel_tool_calls": True}, [1]),
        ({"parallel_tool_calls": False}, [1]),
    ],
)
def test_one_call_is_one(vocabulary: Vocabulary, asked: dict[str, Any], allowed: list[int]) -> None:
    template = ChatTemplate(None, TEMPLATES["Qwen-Qwen2.5-7B-Instruct.jinja"])
    prompt = template.render(QUESTION, ChatParams(tools=TOOLS, **asked))
    assert prompt.grammar
    begun = "" if prompt.triggers else prompt.generation_prompt
    assert [n for n in (1, 2) if allows(vocabulary, prompt.grammar, begun + n * CALL)] == allowed
