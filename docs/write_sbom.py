"""Writes docs/sbom.cdx.json, the software bill of materials: pinned packages of Python, llama.cpp, and marked.

    python docs/write_sbom.py

CycloneDX 1.6. The hashes of the packages' files are in requirements/. It holds no time and no random number: the same
pins make the same file, and a test compares them.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "native"))  # the tools of the build are no package

from llama_cpp_source import Pin  # noqa: E402
from patch_series import patch_paths  # noqa: E402

FILE = Path(__file__).with_name("sbom.cdx.json")
USES = ("run", "build", "dev")
"""Files of requirements; a package belongs to the first that lists it."""
IN_LLAMA_CPP = ("nlohmann/json", "hash (xxHash, SHA-1, SHA-256)", "stb_image")
"""What llama.cpp carries in its own sources, and pymtp compiles."""
MARKED = ROOT / "pymtp" / "server" / "page" / "marked.esm.js"


class Package(NamedTuple):
    """A line of a file of requirements."""

    name: str
    version: str
    marker: str
    """Where it is needed; "" means everywhere."""
    n_hashes: int
    """Of its files."""

    @property
    def purl(self) -> str:
        """Its package URL."""
        return f"pkg:pypi/{self.name}@{self.version}"


def packages(use: str) -> list[Package]:
    """What requirements/`use`.txt lists."""
    text = (ROOT / "requirements" / f"{use}.txt").read_text("utf-8")
    found = re.finditer(r"^(\S+)==(\S+)(?: ; (.*?))? \\\n((?:    --hash.*\n)+)", text, re.MULTILINE)
    return [
        Package(each[1], each[2], each[3] or "", len(re.findall(r"sha256:[0-9a-f]{64}", each[4]))) for each in found
    ]


def text() -> str:
    """The whole of docs/sbom.cdx.json."""
    components, seen = [_llama_cpp(), _marked()], set()
    for use in USES:
        for package in packages(use):
            if package.purl not in seen:
                components.append(_component(package, use))
            seen.add(package.purl)
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert version
    bom = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "pymtp-gguf",
                "name": "pymtp-gguf",
                "version": version[1],
                "licenses": [{"license": {"id": "MIT"}}],
            },
        },
        "components": components,
    }
    return json.dumps(bom, indent=1, ensure_ascii=False) + "\n"


def _component(package: Package, use: str) -> dict[str, Any]:
    properties = [{"name": "pymtp:use", "value": use}]
    properties += [{"name": "pymtp:hashes", "value": f"requirements/{use}.txt"}]
    properties += [{"name": "pymtp:marker", "value": package.marker}] if package.marker else []
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "scope": "required" if use == "run" else "excluded",
        "purl": package.purl,
        "properties": properties,
    }


def _llama_cpp() -> dict[str, Any]:
    """llama.cpp, patched, and what it carries."""
    pin = Pin.read(ROOT / "native" / "llama_cpp.pin")
    patches = [path.relative_to(ROOT).as_posix() for path in patch_paths(ROOT / "native" / "patches")]
    return {
        "type": "library",
        "bom-ref": "llama.cpp",
        "name": "llama.cpp",
        "version": pin.build,
        "scope": "required",
        "description": f"{pin.folder} of {pin.archive}, whose sha256 this is",
        "purl": f"pkg:pypi/{pin.package}@{pin.version}#{pin.folder}",
        "licenses": [{"license": {"id": "MIT"}}],
        "hashes": [{"alg": "SHA-256", "content": pin.sha256}],
        "pedigree": {"patches": [{"type": "unofficial", "diff": {"url": each}} for each in patches]},
        "components": [{"type": "library", "bom-ref": f"llama.cpp/{each}", "name": each} for each in IN_LLAMA_CPP],
    }


def _marked() -> dict[str, Any]:
    """The reader of Markdown that the server's page comes with."""
    data = MARKED.read_bytes()
    found = re.search(rb"marked v([\d.]+) - ", data)
    assert found
    version = found[1].decode()
    return {
        "type": "library",
        "bom-ref": "marked",
        "name": "marked",
        "version": version,
        "scope": "required",
        "description": f"{MARKED.relative_to(ROOT).as_posix()}, whose sha256 this is: lib/{MARKED.name} of its package",
        "purl": f"pkg:npm/marked@{version}",
        "licenses": [{"license": {"id": "MIT"}}],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}],
    }


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
