"""Which folder of native/src may include which: the import contract of the C++ side."""

from __future__ import annotations

import re
from pathlib import Path

NATIVE = Path(__file__).parent.parent / "native"

# From the lowest up: each may include the folders that it lists, all of which come before it. `include` declares the C
# interface, of which the folders below `abi` take plain types and numbers, and call no function.
MAY_INCLUDE = {
    "include": [],
    "cuda": [],
    "cpu": [],
    "rpc": ["cuda"],
    "heads": [],
    "engine": ["include", "cpu", "cuda", "rpc", "heads"],
    "samplers": ["include"],
    "abi": ["include", "rpc", "heads", "engine", "samplers"],
    "lookup": ["include", "abi"],
    "chat": ["include", "abi"],
    "images": ["include", "engine", "abi"],
}
FILES = {p.name: p for p in [*NATIVE.glob("src/*/*"), *NATIVE.glob("include/*.h")]}


def test_folders_include_only_what_is_below_them() -> None:
    upward = []
    for path in FILES.values():
        folder = path.parent.name
        for name in re.findall(r'^\s*#\s*include "([^"]+)"', path.read_text("utf-8"), re.MULTILINE):
            other = FILES[name].parent.name if name in FILES else folder
            if other != folder and other not in MAY_INCLUDE[folder]:
                upward.append(f"{folder}/{path.name} includes {other}/{name}")
    assert upward == []


def test_the_table_has_no_circle() -> None:
    order = list(MAY_INCLUDE)
    assert all(order.index(below) < order.index(folder) for folder in order for below in MAY_INCLUDE[folder])


def test_only_the_c_interface_and_what_is_above_it_has_its_functions() -> None:
    entries = {
        name
        for path in NATIVE.glob("include/*.h")
        for name in re.findall(r"^[\w *]*?\b(pymtp_\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    }
    below = list(MAY_INCLUDE)[1 : list(MAY_INCLUDE).index("abi")]
    called = [
        f"{path.parent.name}/{path.name}: {name}"
        for path in FILES.values()
        if path.parent.name in below
        for name in re.findall(r"\b(pymtp_\w+)\(", path.read_text("utf-8"))
        if name in entries
    ]
    assert len(entries) > 60 and called == []
