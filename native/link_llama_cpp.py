"""Lets llama-cpp-python run on pymtp's libraries, in the environment of a checkout.

Tests and benchmarks call llama.cpp's own functions through it, on the same library that pymtp uses. It is installed
without libraries of its own for that; links to pymtp's take their place.

    python native/link_llama_cpp.py
"""

from __future__ import annotations

import importlib.util
from pathlib import Path


def folder_of(module: str) -> Path:
    """Where a module is installed, without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{module} is not installed: run `make install`")
    return Path(spec.origin).parent


def main() -> None:
    links = folder_of("llama_cpp") / "lib"
    links.mkdir(exist_ok=True)
    for link in links.iterdir():
        link.unlink()
    for library in (folder_of("pymtp._native") / "lib").iterdir():
        # under the name that llama_cpp looks for, and under that by which the libraries find each other
        for name in {library.name, library.name.replace("pymtp-", "")}:
            (links / name).symlink_to(library)


if __name__ == "__main__":
    main()
