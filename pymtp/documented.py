"""Fields in Python's help: the strings below the fields of a class become a part of its docstring.

Owns how fields look there. Reads the source only when somebody asks for the docstring.
"""

import ast
import inspect
import textwrap
from typing import TypeVar

_Class = TypeVar("_Class", bound=type)


def documented(of: _Class) -> _Class:
    """Add the fields of a class to its docstring, with what stands below them."""
    of.__doc__ = _Docstring(of.__doc__ or "")  # type: ignore[assignment]
    return of


def strings_below(of: type) -> dict[str, str]:
    """The fields that the body of a class declares, and the string below each; "" where there is none."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(of))).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for each, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            found[each.target.id] = " ".join(str(text).split())
    return found


class _Docstring:
    def __init__(self, text: str) -> None:
        self._text = inspect.cleandoc(text)

    def __get__(self, instance: object, owner: type) -> str:
        try:
            fields = strings_below(owner)
        except (OSError, TypeError):  # there is no source
            return self._text
        lines = [self._text, "", "Fields:"]
        for name, text in fields.items():
            lines.append(f"  {name}")
            lines += textwrap.wrap(text, 100, initial_indent="      ", subsequent_indent="      ")
        return "\n".join(lines)
