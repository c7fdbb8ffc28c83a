"""What an answer has to be: its grammar, and how long its thinking may be.

Knows texts; the native sampler makes tokens of them.
"""

from dataclasses import dataclass
from typing import Any

from pymtp.binding.library import check, error_message, ffi, lib
from pymtp.errors import InvalidParameter, require


@dataclass(frozen=True)
class AnswerRules:
    """Rules that the chain's tokens follow, drafts and target alike."""

    grammar: str | None = None
    """GBNF; from the first trigger on if there are any, and not inside the thinking then."""
    words: tuple[str, ...] = ()
    """Triggers: texts."""
    patterns: tuple[str, ...] = ()
    """Triggers: regular expressions (ECMAScript)."""
    prefill: str = ""
    """What the prompt has of the answer. A grammar without triggers begins with it."""
    thinking_begin: str = ""
    thinking_ends: tuple[str, ...] = ()
    """The first closes the thinking when its budget is used up."""
    thinking_budget: int = -1
    """Most tokens of each thinking; -1: any number."""

    def native(self) -> tuple[Any, list[Any]]:
        """The native struct, and what has to live as long."""
        alive: list[Any] = []

        def text(value: str) -> Any:
            alive.append(ffi.new("char[]", value.encode()))
            return alive[-1]

        fields: dict[str, Any] = {
            "grammar": ffi.NULL if self.grammar is None else text(self.grammar),
            "prefill": text(self.prefill),
            "thinking_begin": text(self.thinking_begin) if self.thinking_begin else ffi.NULL,
            "thinking_budget": self.thinking_budget,
        }
        for name in ("words", "patterns", "thinking_ends"):
            values = [text(value) for value in getattr(self, name)]
            alive.append(ffi.new("char *[]", values))
            fields |= {name: alive[-1], f"n_{name}": len(values)}
        return ffi.new("struct pymtp_answer_rules *", fields), alive


def check_grammar(grammar: str) -> str:
    """Return `grammar` if it is GBNF with a rule "root" that llama.cpp can use. Raises InvalidParameter.

    Tokens that it names (<think>) are not checked here, but where a model is loaded: see chain.check_with_vocabulary.
    """
    try:
        text = ffi.new("char[]", grammar.encode())
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidParameter("grammar", f"GBNF in valid Unicode ({error})") from None
    require("\0" not in grammar, "grammar", "GBNF without NUL characters")
    status = lib.pymtp_grammar_check(text)
    if status == lib.PYMTP_INVALID:
        raise InvalidParameter("grammar", f"GBNF with a rule named root ({error_message()})")
    check(status)
    return grammar
