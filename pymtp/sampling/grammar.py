"""Grammars that constrain the output, in GBNF.

Knows grammars as texts; llama.cpp parses and applies them.
"""

from __future__ import annotations

from pymtp.binding.library import ffi, lib
from pymtp.binding.status import check, error_message
from pymtp.errors import InvalidParameter


def check_grammar(grammar: str) -> str:
    """Return `grammar` if it is GBNF with a rule "root" that llama.cpp can use. Raises InvalidParameter.

    Tokens that it names (<think>) are not checked here, but where a model is loaded: see chain.check_with_vocabulary.
    """
    try:
        text = ffi.new("char[]", grammar.encode())
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidParameter("grammar", f"GBNF in valid Unicode ({error})") from None
    if "\0" in grammar:
        raise InvalidParameter("grammar", "GBNF without NUL characters")
    status = lib.pymtp_grammar_check(text)
    if status == lib.PYMTP_INVALID:
        raise InvalidParameter("grammar", f"GBNF with a rule named root ({error_message()})")
    check(status)
    return grammar
