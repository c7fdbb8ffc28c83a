"""Files of llama.cpp's source archive that pymtp was built from: its tests and its chat templates."""

from __future__ import annotations

import json
import re
import sys
import tarfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "native"))  # the tools of the build are no package; scripts import this file, too

import prepare_llama_cpp  # noqa: E402
from llama_cpp_source import Pin  # noqa: E402

PIN = Pin.read(ROOT / "native" / "llama_cpp.pin")


def pristine_source() -> Path | None:
    """The archive or the directory that this checkout was built from."""
    archive = ROOT / "build" / PIN.archive
    stamps = [json.loads(path.read_text()) for path in ROOT.glob(f"build/*/llama.cpp/{prepare_llama_cpp.STAMP}")]
    found = [archive, *(Path(stamp["source"]) for stamp in stamps)]
    return next((path for path in found if path.exists()), None)


KEPT = re.compile(r"models/templates/.*\.jinja|tests/test-json-schema-to-grammar\.cpp")


@lru_cache
def _kept() -> dict[str, str]:
    """The files that match `KEPT`, by path: one walk through the archive, which takes seconds."""
    source = pristine_source()
    if source is None or not source.is_file():
        return {}
    found = {}
    with tarfile.open(source) as archive:
        for member in archive:
            path = member.name.removeprefix(PIN.prefix)
            file = archive.extractfile(member) if KEPT.fullmatch(path) else None
            if file:
                found[path] = file.read().decode()
    return found


def texts(folder: str, suffix: str) -> dict[str, str]:
    """The files of a folder of llama.cpp that match `KEPT`, by name; none if the archive is not at hand."""
    prefix = f"{folder}/"
    return {
        path.removeprefix(prefix): text
        for path, text in _kept().items()
        if path.startswith(prefix) and path.endswith(suffix)
    }


class SchemaCase(NamedTuple):
    """A case of llama.cpp's own test of its converter."""

    name: str
    schema: str
    grammar: str | None
    """None: it has to be refused."""


def schema_cases() -> list[SchemaCase]:
    """All cases of llama.cpp's test-json-schema-to-grammar."""
    text = r'(?:R"""\((.*?)\)"""|"([^"]*)")'
    case = re.compile(rf'test\(\{{\s*(SUCCESS|FAILURE),\s*"((?:[^"\\]|\\.)*)",\s*{text},\s*{text}\s*\}}\);', re.DOTALL)
    found = case.findall(texts("tests", ".cpp").get("test-json-schema-to-grammar.cpp", ""))
    return [
        SchemaCase(name, raw or plain, gbnf if ok == "SUCCESS" else None) for ok, name, raw, plain, gbnf, _ in found
    ]
