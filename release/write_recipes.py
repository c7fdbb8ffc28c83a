"""Writes the recipes of a release for Homebrew (pymtp.rb), conda (recipe.yaml) and the AUR (PKGBUILD).

    python release/write_recipes.py dist/pymtp_gguf-0.2.0.tar.gz FOLDER

Templates are in release/recipes; versions, digests and what pymtp needs come from the source archive, pyproject.toml
and native/llama_cpp.pin. Somebody has to send the recipes to where they belong.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

from cut_release import ROOT, VERSIONS, BadRelease, read, source_url

TEMPLATES = Path(__file__).with_name("recipes")
INDEX = "https://pypi.org/packages/source"
ARCH_NAMES = {"huggingface_hub": "python-huggingface-hub", "uvicorn": "uvicorn"}
"""Packages of Arch that are not called python- and their name."""


def values(sdist: Path) -> dict[str, str]:
    """What takes the place of each @NAME@ in a template.

    Raises:
        BadRelease: the source archive is not that of this version.
    """
    version = read(ROOT, "pyproject.toml", VERSIONS["pyproject.toml"])
    if sdist.name != f"pymtp_gguf-{version}.tar.gz":
        raise BadRelease(f"{sdist.name}: the source archive of this version is pymtp_gguf-{version}.tar.gz")
    pin = {key: read(ROOT, "native/llama_cpp.pin", rf"^{key} *= *(\S+)$") for key in ("archive", "folder", "sha256")}
    package = pin["archive"].partition("-")[0]
    listed = re.findall(r'"(.+?)"', read(ROOT, "pyproject.toml", r"^dependencies = \[\n((?:.*\n)*?)\]"))
    needed = [re.split(r"(>=|;)", one.partition(";")[0], maxsplit=1) for one in listed]
    names = [name for name, *_ in needed]
    return {
        "VERSION": version,
        "SUMMARY": read(ROOT, "pyproject.toml", r'^description = "(.+)"$'),
        "SOURCE": source_url(ROOT),
        "SDIST_URL": f"{INDEX}/p/pymtp-gguf/{sdist.name}",
        "SDIST_SHA256": hashlib.sha256(sdist.read_bytes()).hexdigest(),
        "ARCHIVE": pin["archive"],
        "ARCHIVE_URL": f"{INDEX}/{package[0]}/{package}/{pin['archive']}",
        "ARCHIVE_SHA256": pin["sha256"],
        "ARCHIVE_FOLDER": pin["folder"],
        "CONDA_DEPENDS": "\n".join(f"    - {name} {''.join(least)}".rstrip() for name, *least in needed),
        "ARCH_DEPENDS": " ".join(ARCH_NAMES.get(name, f"python-{name}") for name in names),
    }


def write_recipes(sdist: Path, folder: Path) -> None:
    """Fill all templates. Raises BadRelease."""
    known = values(sdist)
    folder.mkdir(parents=True, exist_ok=True)
    for template in TEMPLATES.iterdir():
        text = re.sub(r"@([A-Z0-9_]+)@", lambda found: known[found[1]], template.read_text("utf-8"))
        (folder / template.name).write_text(text, "utf-8")


if __name__ == "__main__":
    try:
        write_recipes(Path(sys.argv[1]), Path(sys.argv[2]))
    except BadRelease as error:
        sys.exit(str(error))
