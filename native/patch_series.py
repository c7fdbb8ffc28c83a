"""The patch series: its order, its headers, its hash, and how it is applied.

Knows patch files and a tree to apply them to; not where that tree comes from.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from llama_cpp_source import PrepareError, digest_of

AUTHOR = "pymtp <pymtp@localhost>"
FIELDS = ("Purpose", "Upstream", "Drop-when", "Proved-by")


@dataclass(frozen=True)
class Patch:
    path: Path
    title: str
    header: str  # the fields
    diff: str

    @property
    def files(self) -> list[str]:
        """Those that it touches, in the order of the diff."""
        return re.findall(r"(?m)^diff --git .* b/(.+)$", self.diff)

    @classmethod
    def read(cls, path: Path) -> "Patch":
        """A file that write_patch() wrote, or one without the two lines of a mail."""
        text, start, diff = path.read_text("utf-8").partition("diff --git ")
        mail = re.match(r"From: .*\nSubject: \[PATCH\] (.*)\n\n", text)
        title = mail[1] if mail else path.stem.partition("-")[2].replace("-", " ")
        return cls(path, title, text[mail.end() if mail else 0 :].strip(), start + diff)


def write_patch(folder: Path, number: int, title: str, header: str, diff: str) -> Path:
    """Writes a patch as git format-patch does, so that git am can read it."""
    path = folder / f"{number:04d}-{title.replace(' ', '-')}.patch"
    path.write_text(f"From: {AUTHOR}\nSubject: [PATCH] {title}\n\n{header}\n{diff}", "utf-8", newline="\n")
    return path


def header_fields(header: str) -> dict[str, list[str]]:
    """A header's fields, each a list of lines; a field may be repeated, and an indented line continues it."""
    fields: dict[str, list[str]] = {}
    for name, text in re.findall(r"(?ms)^([A-Z][a-z-]*):(.*?)(?=^[A-Z][a-z-]*:|\Z)", header):
        fields.setdefault(name, []).extend(filter(None, map(str.strip, text.splitlines())))
    return fields


def patch_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.patch"))


def series_hash(pin: Path, folder: Path, more: dict[str, Path] | None = None) -> str:
    """The digest of the pin, the patches and further files by their names, in sorted order."""
    files = {path.name: path for path in [pin, *patch_paths(folder)]} | dict(sorted((more or {}).items()))
    return digest_of(files)


def apply(patch: Path, tree: Path) -> None:
    """Applies one patch, whole or not at all. Raises PrepareError naming the patch and the file."""
    result = git(["apply", "--whitespace=nowarn", str(patch.resolve())], tree)
    if result.returncode != 0:
        reason = "; ".join(result.stderr.replace("error: ", "").splitlines())
        files = Patch.read(patch).files
        if not any(file in reason for file in files):
            reason += f" (it touches {', '.join(files) or 'no file'})"
        raise PrepareError(f"native/patches/{patch.name} does not apply: {reason}; see native/patches/README.md")


def git(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs git in a folder as if no repository lay around it.

    Inside somebody's work tree `git apply` would skip, without a word, every file that is not below the current
    folder as that repository sees it.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    env["GIT_CEILING_DIRECTORIES"] = str(folder.resolve().parent)
    command = ["git", "-c", "core.autocrlf=false", *arguments]
    try:
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    except FileNotFoundError:
        raise PrepareError("git not found, and llama.cpp is patched with it: install git") from None
