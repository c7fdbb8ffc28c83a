"""Grammars that a text has to follow: GBNF, or a JSON schema turned into it by llama-cpp-python.

Knows grammars as texts; parsing and applying them is llama.cpp's.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pymtp.binding import log as _log
from pymtp.binding.library import llama_cpp
from pymtp.errors import InvalidParameter


def check_grammar(grammar: str) -> str:
    """Return `grammar` if it is GBNF with a rule "root". Raises InvalidParameter.

    Tokens that it names (<think>) are only known to a model: a grammar with such is checked where one is loaded.
    """
    _log.take_recent()
    with _stderr_of_c() as complaints:
        parsed = llama_cpp.llama_sampler_init_grammar(None, grammar.encode(), b"root") if grammar.strip() else None
        lines = complaints()
    if parsed:
        llama_cpp.llama_sampler_free(parsed)
    elif not any("no vocab" in line for line in lines):
        lines += [line for line in _log.take_recent().splitlines() if line.strip()]
        reason = lines[0].rpartition("error parsing grammar: ")[2].strip() if lines else "it is empty"
        raise InvalidParameter("grammar", f"GBNF with a rule named root ({reason})")
    return grammar


@contextlib.contextmanager
def _stderr_of_c() -> Iterator[Callable[[], list[str]]]:
    """Keeps what C code writes to stderr, where llama.cpp says what is wrong with a grammar; yields who reads it."""
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)

        def lines() -> list[str]:
            file.seek(0)
            return file.read().decode(errors="replace").splitlines()

        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def grammar_of_schema(schema: str | Mapping[str, Any]) -> str:
    """The GBNF of a JSON schema, given as JSON or as what JSON decodes to. Raises InvalidParameter."""
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        decoded = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InvalidParameter("json_schema", f"valid JSON ({error})") from error
    if not isinstance(decoded, dict):
        raise InvalidParameter("json_schema", "a JSON object", value=text[:60])
    try:
        return check_grammar(json_schema_to_gbnf(text))
    except Exception as error:  # what the schema asks for may be beyond the converter in many ways
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidParameter("json_schema", f"one that can be turned into a grammar ({reason})") from error
