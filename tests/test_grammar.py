"""Grammars and JSON schemas that cannot be used are refused before there is a model."""

from __future__ import annotations

import os
import sys

import pytest

from pymtp import Model
from pymtp.chat.schema import grammar_of_schema
from pymtp.errors import InvalidParameter, PymtpError
from pymtp.sampling.rules import check_grammar


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ('root ::= "a', "unexpected end of input"),
        ("root ::= (", r"expecting '\)' at"),
        ('root := "a"', "expecting ::= at"),
        ("no grammar at all", "expecting ::= at"),
        ('answer ::= "a"', "does not contain a 'root' symbol"),
        ("root ::= answer", "Undefined rule identifier 'answer'"),
        ('root ::= root "a" | "b"', "left recursion"),
        ('root ::= x\nx ::= x "a"', "left recursion"),
        ('root ::= "a"{5,2}', "a repetition of at least 5 and at most 2"),
        ('root ::= (("{" [}] "b"){3 , # up to\n 1 })', "a repetition of at least 3 and at most 1"),
    ],
)
def test_a_grammar_that_cannot_be_parsed_is_refused_with_the_reason(grammar: str, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=rf"^grammar must be GBNF with a rule named root \(.*{reason}"):
        check_grammar(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a"',
        "root ::= [a-z]{1,20} | item+\nitem ::= [0-9] # a digit {5,2}",
        'root ::= "{5,2}" [{5,2}] "a"{2,2} "b"{3,} "c"{4}',
        'root ::= "é" "\\n"',
        'root ::= <think> "a"',  # only a model knows whether there is such a token
    ],
)
def test_a_valid_grammar_is_returned_unchanged(grammar: str) -> None:
    assert check_grammar(grammar) == grammar


def test_parse_errors_are_not_written_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidParameter):
        check_grammar("root ::= (")
    os.write(2, b"still there")
    print("and here", file=sys.stderr)
    assert capfd.readouterr() == ("", "still thereand here\n")


TOO_MANY = "x{1,500}\nx ::= y{0,50}\ny ::= [a-z ]?"


@pytest.mark.model
@pytest.mark.parametrize(
    ("grammar", "reason"),
    [('root ::= <nowhere> "a"', "invalid token '<nowhere>'"), (f"root ::= {TOO_MANY}", "too many ways")],
)
def test_a_grammar_that_a_model_cannot_follow_is_refused(grammar: str, reason: str) -> None:
    with Model(n_ctx=256) as model, pytest.raises(InvalidParameter, match=f"grammar must be .*{reason}"):
        model.generate("a", grammar=grammar)


@pytest.mark.model
def test_a_grammar_that_can_be_followed_in_too_many_ways_ends_its_own_text_alone() -> None:
    with Model(n_ctx=256, n_seq_max=2, n_threads=1) as model:
        other = model.generate("Once upon a time", max_tokens=40, ignore_eos=True)
        with pytest.raises(PymtpError, match="too many ways"):
            "".join(model.generate("a", grammar=f'root ::= "a" {TOO_MANY}', max_tokens=40))
        "".join(other)
        assert len(other.tokens) == 40


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "valid JSON"),
        ("", "valid JSON"),
        ("{'type': 'object'}", "valid JSON"),
        ({"enum": {1, 2}}, "valid JSON"),
        ("5", "a JSON object, not '5'"),
        ("null", "a JSON object"),
        ("[1]", "a JSON object"),
        ("true", "a JSON object"),
        ('{"type": "number of beasts"}', "a schema that can be turned into a grammar"),
        ('{"$ref": "#/nowhere"}', "a schema that can be turned into a grammar"),
        ({"type": "string", "pattern": "^(?=a)"}, "a schema that grammars can follow: they cannot know pattern"),
        ({"anyOf": []}, "a schema that can be turned into a grammar"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_reason(schema: object, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=f"^json_schema must be {reason}"):
        grammar_of_schema(schema)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "schema", ["{}", {"type": "object", "properties": {"a": {"type": "integer"}}}, {"enum": ["x", 1]}]
)
def test_a_schema_becomes_a_grammar(schema: object) -> None:
    assert "root ::=" in grammar_of_schema(schema)  # type: ignore[arg-type]
