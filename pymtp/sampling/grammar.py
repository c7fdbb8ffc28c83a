"""Grammars that constrain the output, in GBNF.

Knows grammars as texts; llama.cpp parses and applies them.
"""

from __future__ import annotations

from pymtp.binding import log as _log
from pymtp.binding.library import ffi, lib
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
    with _log.captured_stderr() as captured_lines:
        parsed = lib.llama_sampler_init_grammar(ffi.NULL, data, b"root") if grammar.strip() else None
        lines = captured_lines()
    if parsed:
        lib.llama_sampler_free(parsed)
    elif not any("no vocab" in line for line in lines):
        lines += [line for line in _log.take_recent().splitlines() if line.strip()]
        reason = lines[0].rpartition("error parsing grammar: ")[2].strip() if lines else "it is empty"
        raise InvalidParameter("grammar", f"GBNF with a rule named root ({reason})")
    return grammar
