"""Turns the patch series into a git repository to edit, one commit a patch, and back into patch files.

    python native/edit_patches.py edit [--source ARCHIVE_OR_DIR]
    python native/edit_patches.py export

make patches-edit and make patches-export call it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llama_cpp_source import Pin, PrepareError, fetch_archive, unpack
from patch_series import FIELDS, Patch, apply, git, header_fields, patch_paths, touches, write_patch
from prepare_llama_cpp import NATIVE, PATCHES, PIN

BUILD = NATIVE.parent / "build"
PRISTINE = "pristine"  # the tag of the commit below the series

# The user's own git settings must not reach the patches
SETTINGS = {
    "user.name": "pymtp",
    "user.email": "pymtp@localhost",
    "commit.gpgsign": "false",
    "core.autocrlf": "false",
    "core.hooksPath": "/dev/null",
}


def edit(folder: Path, source: Path | None, pin: Path = PIN, patches: Path = PATCHES) -> None:
    """Makes the repository: the pristine tree, then one commit for each patch."""
    if folder.exists():
        raise PrepareError(f"{folder} exists: export it (make patches-export), then delete it")
    unpack(source or fetch_archive(Pin.read(pin), BUILD), Pin.read(pin), folder)
    run(["init", "--quiet"], folder)
    for key, value in SETTINGS.items():
        run(["config", key, value], folder)
    commit(folder, f"llama.cpp of {Pin.read(pin)}")
    run(["tag", PRISTINE], folder)
    for path in patch_paths(patches):
        apply(path, folder)
        patch = Patch.read(path)
        commit(folder, f"{patch.title}\n\n{patch.header}\n")


def export(folder: Path, patches: Path = PATCHES) -> list[Path]:
    """Writes the commits back as patch files, with fresh numbers and a fresh Touches field."""
    if run(["status", "--porcelain"], folder):
        raise PrepareError(f"{folder} has changes that are in no commit: commit or drop them first")
    commits = run(["rev-list", "--reverse", f"{PRISTINE}..HEAD"], folder).split()
    series = []
    for commit_id in commits:
        title, _, header = run(["show", "--no-patch", "--format=%B", commit_id], folder).partition("\n")
        # whole blob ids: a 3-way merge looks for the old file by them
        diff = run(["diff-tree", "-p", "-U3", "--full-index", "--no-renames", "--no-commit-id", commit_id], folder)
        series.append((title.strip(), write_header(title, header, diff), diff))
    for path in patch_paths(patches):
        path.unlink()
    return [write_patch(patches, number, *parts) for number, parts in enumerate(series, 1)]


def write_header(title: str, header: str, diff: str) -> str:
    fields = header_fields(header) | {"Touches": touches(diff)}
    missing = [field for field in FIELDS if field not in fields]
    if missing:
        raise PrepareError(f"the commit '{title}' has no line '{missing[0]}: ...'; see native/patches/README.md")
    # one Touches line a file; the lines of the others are one sentence that was wrapped
    lines = {field: fields[field] if field == "Touches" else ["\n  ".join(fields[field])] for field in FIELDS}
    return "".join(f"{field}: {line}\n" for field in FIELDS for line in lines[field])


def commit(folder: Path, message: str) -> None:
    run(["add", "--all", "--force"], folder)  # --force: llama.cpp's own .gitignore does not matter here
    run(["commit", "--quiet", "--message", message], folder)


def run(arguments: list[str], folder: Path) -> str:
    if not folder.exists():
        raise PrepareError(f"{folder} is not there: run make patches-edit first")
    result = git(arguments, folder)
    if result.returncode != 0:
        raise PrepareError(f"git {arguments[0]} failed in {folder}: {result.stderr.strip()}")
    return result.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description="Edits pymtp's patches to llama.cpp in a git repository.")
    parser.add_argument("action", choices=["edit", "export"])
    parser.add_argument("--source", type=Path, help="archive or directory to use instead of a download")
    options = parser.parse_args()
    folder = BUILD / "patches"
    try:
        if options.action == "edit":
            edit(folder, options.source)
            print(f"{folder}: one commit a patch. Change them, then run make patches-export")
        else:
            for path in export(folder):
                print(path.name)
    except PrepareError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
