"""Lets llama-cpp-python run on pymtp's libraries, in the environment of a checkout.

Tests and benchmarks call llama.cpp's own functions through it, on the same library that pymtp uses. It is installed
without libraries of its own for that; links to pymtp's take their place. Where its llama.cpp is older than the pinned
one, its structures get the fields that came since.

    python tests/link_llama_cpp.py
"""

import importlib.util
from pathlib import Path

NEW_FIELDS = {'        ("type_v", ctypes.c_int),\n': '        ("moe_cache_size", ctypes.c_size_t),\n'}
"""Fields of llama_cpp.llama_cpp's structures, by the line that they come after."""


def folder_of(module: str) -> Path:
    """Where a module is installed, without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{module} is not installed: run `make install`")
    return Path(spec.origin).parent


def link(libraries: Path, links: Path) -> None:
    """Make a folder of links to a folder of pymtp's libraries, by which llama_cpp finds them."""
    links.mkdir(exist_ok=True)
    for old in links.iterdir():
        old.unlink()
    for library in libraries.iterdir():
        # under the name that llama_cpp looks for, and under that by which the libraries find each other
        for name in {library.name, library.name.replace("pymtp-", "")}:
            (links / name).symlink_to(library)


def main() -> None:
    link(folder_of("pymtp._native") / "lib", folder_of("llama_cpp") / "lib")
    add_fields(folder_of("llama_cpp") / "llama_cpp.py")


def add_fields(file: Path) -> None:
    """Add the new fields to the structures that the file declares, unless they are there."""
    text = file.read_text("utf-8")
    for before, field in NEW_FIELDS.items():
        if field not in text:
            text = text.replace(before, before + field, 1)
    file.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
