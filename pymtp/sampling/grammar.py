"""Grammars that constrain the output: GBNF, or a JSON schema that llama-cpp-python turns into GBNF.

Knows grammars as texts; llama.cpp parses and applies them.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pymtp.binding import log as _log
from pymtp.binding.library import ffi, import_llama_cpp, lib
from pymtp.errors import InvalidParameter


def check_grammar(grammar: str) -> str:
    """Return `grammar` if it is GBNF with a rule "root". Raises InvalidParameter.

    Tokens that it names (<think>) are not checked here, but where a model is loaded: see chain.check_with_vocabulary.
    """
    try:
        data = grammar.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter("grammar", f"GBNF in valid Unicode ({error})") from None
    _log.take_recent()
    with _captured_stderr() as captured_lines:
        parsed = lib.llama_sampler_init_grammar(ffi.NULL, data, b"root") if grammar.strip() else None
        lines = captured_lines()
    if parsed:
        lib.llama_sampler_free(parsed)
    elif not any("no vocab" in line for line in lines):
        lines += [line for line in _log.take_recent().splitlines() if line.strip()]
        reason = lines[0].rpartition("error parsing grammar: ")[2].strip() if lines else "it is empty"
        raise InvalidParameter("grammar", f"GBNF with a rule named root ({reason})")
    return grammar


@contextlib.contextmanager
def _captured_stderr() -> Iterator[Callable[[], list[str]]]:
    """Capture what C code writes to stderr, as llama.cpp does for bad grammars; yields a function that reads it."""
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
    """The GBNF of a JSON schema, given as JSON text or as decoded JSON. Raises InvalidParameter."""
    import_llama_cpp()
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        decoded = json.loads(text)
    except RecursionError:
        raise InvalidParameter("json_schema", "valid JSON that is not nested so deeply") from None
    except (TypeError, ValueError) as error:
        raise InvalidParameter("json_schema", f"valid JSON ({error})") from error
    if not isinstance(decoded, dict):
        raise InvalidParameter("json_schema", "a JSON object", value=text[:60])
    try:
        return check_grammar(json_schema_to_gbnf(text))
    except Exception as error:  # the converter fails in many ways on schemas that it does not support
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidParameter("json_schema", f"a schema that can be turned into a grammar ({reason})") from error
