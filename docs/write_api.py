"""Writes docs/api.md from the package itself: what it exports, with signatures, fields and docstrings.

    python docs/write_api.py

A test compares the file with what this makes of the package.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import MISSING, fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pymtp

FILE = Path(__file__).with_name("api.md")

HEAD = """# API reference

<!-- written by docs/write_api.py from the package: change it, then `make docs` -->

What `import pymtp` gives, in the order of its own help. The [guide](python.md) shows how it is used. Methods show their
first sentence here; `help(pymtp.Model.generate)` shows the rest, and which errors a method raises. `pymtp.Session`, the
level below models and generations, is explained in the same way.
"""

SECTIONS = {
    "Models and texts": (
        *("Model", "ModelSlots", "ModelAdapters"),
        *("Generation", "Conversation", "Answer", "Stats"),
    ),
    "Parameters": ("ModelParams", "ContextParams", "DraftParams", "GenerationParams", "SamplingParams"),
    "Chat templates": (
        *("ChatTemplate", "ChatParams", "ChatPrompt"),
        *("ChatParser", "ChatMessage", "ChatDelta", "ToolCall", "ToolCallDelta"),
    ),
    "Drafters": ("Drafter", "DrafterTraits", "DraftRequest", "DraftOutcome", "Proposal"),
    "Sessions": ("Session", "Chunk"),
    "Errors": (
        "PymtpError",
        "BackendError",
        "Closed",
        "ContextFull",
        "NotFinite",
        "NothingAllowed",
        "InvalidParameter",
        "LibraryError",
        "ModelError",
        "RemoteError",
        "StateError",
        "UnsupportedModel",
    ),
    "Images": ("Image",),
    "Adapters": ("LoraAdapter",),
    "Devices": ("Device",),
    "Functions": ("devices", "exit_on_abort", "set_log_level", "version_text"),
}


def text() -> str:
    """The whole of docs/api.md."""
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(name, getattr(pymtp, name)) for name in names]
    return "\n".join(parts)


def _entry(name: str, value: Any) -> str:
    if inspect.isclass(value) and issubclass(value, Exception):
        return _row(name, _doc(value)) + ("\n" if name == SECTIONS["Errors"][-1] else "")
    lines = [f"### {name}\n"]
    if not inspect.isclass(value):
        return "\n".join([*lines, f"```python\n{name}{_signature(value)}\n```\n", _doc(value)])
    if name in ("Model", "Conversation"):  # the others are made by these
        lines.append(f"```python\n{name}{_signature(value)}\n```\n")
    lines.append(_doc(value).partition("\n\n")[0] + "\n" if name == "Session" else _doc(value))
    if rows := [*_fields(value), *_attributes(value), *_methods(value)]:
        lines.append("\n".join(rows) + "\n")
    return "\n".join(lines)


def _fields(value: type) -> list[str]:
    """Fields of a dataclass or NamedTuple, with the strings that stand below them."""
    notes = _strings_below(value)
    if is_dataclass(value):
        return [
            _row(f"{each.name} = {_default(each)}" if _default(each) else each.name, notes.get(each.name, ""))
            for each in fields(value)
            if not each.name.startswith("_")
        ]
    if hasattr(value, "_fields"):
        return [_row(name, notes.get(name, "")) for name in value._fields]
    return []


def _attributes(value: type) -> list[str]:
    """What __init__ sets and documents."""
    source = ast.parse(textwrap.dedent(inspect.getsource(value)))
    body = [node for node in ast.walk(source) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    rows = []
    for node, after in ((n, a) for function in body for n, a in zip(function.body, function.body[1:], strict=False)):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Tuple):
            target = target.elts[0]
        is_own = isinstance(target, ast.Attribute) and not target.attr.startswith("_")
        if is_own and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            rows.append(_row(target.attr, str(after.value.value)))
    return rows


def _methods(value: type) -> list[str]:
    rows = []
    for name, member in chain(*(vars(each).items() for each in value.__mro__ if each.__module__.startswith("pymtp"))):
        if name.startswith("_"):
            continue
        if isinstance(member, (property, classmethod)) or inspect.isfunction(member):
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            called = "" if isinstance(member, property) else _signature(function)
            rows.append(_row(f"{name}{called}", _first_sentence(_doc(function))))
    return rows


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    given = [each for name, each in signature.parameters.items() if name != "self"]
    parameters = [
        each.replace(annotation=each.empty, default=... if inspect.isfunction(each.default) else each.default)
        for each in given
    ]
    return re.sub(r"<[^>]*>", "...", str(inspect.Signature(parameters)).replace("Ellipsis", "..."))


def _strings_below(of: type) -> dict[str, str]:
    """The fields that the body of a class declares, and the string below each; "" where there is none."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(of))).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for each, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            found[each.target.id] = " ".join(str(text).split())
    return found


def _default(field: Any) -> str:
    if field.default is MISSING:
        return ""
    return repr(field.default)


def _doc(value: Any) -> str:
    return inspect.cleandoc(value.__doc__ or "") + "\n"


def _first_sentence(text: str) -> str:
    return re.sub(r"(?<=\.)\s+(?=[`A-Z]).*", "", text.partition("\n\n")[0], count=1, flags=re.DOTALL)


def _row(name: str, meaning: str) -> str:
    return f"- `{name}`: {' '.join(meaning.split())}" if meaning.strip() else f"- `{name}`"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
