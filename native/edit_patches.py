"""Turns the patch series into a git repository to edit, one commit for each patch, and back into patch files.

    python native/edit_patches.py edit [--source ARCHIVE_OR_DIR]
    python native/edit_patches.py rebase --onto ARCHIVE [--source ARCHIVE_OR_DIR]
    python native/edit_patches.py export

make patches-edit, make patches-rebase and make patches-export call it.
"""

import argparse
import sys
from pathlib import Path

from llama_cpp_source import Pin, PrepareError, fetch_archive, unpack, unpack_other
from patch_series import FIELDS, Patch, apply, git, header_fields, patch_paths, write_patch
from prepare_llama_cpp import NATIVE, PATCHES, PIN

BUILD = NATIVE.parent / "build"
SERIES = "series"  # the branch
PRISTINE = "pristine"  # the tag of the commit below the series
OLD_PRISTINE = "old-pristine"  # the same for the series before a rebase

# The user's own git settings must not reach the patches
SETTINGS = {
    "user.name": "pymtp",
    "user.email": "pymtp@localhost",
    "commit.gpgsign": "false",
    "core.autocrlf": "false",
    "core.hooksPath": "/dev/null",
    "merge.conflictStyle": "diff3",  # a conflict also shows what llama.cpp had before
}


def edit(folder: Path, source: Path | None, pin: Path = PIN, patches: Path = PATCHES) -> None:
    """Makes the repository: the pristine tree, then one commit for each patch."""
    if folder.exists():
        raise PrepareError(f"{folder} exists: export it (make patches-export), then delete it")
    unpack(source or fetch_archive(Pin.read(pin), BUILD), Pin.read(pin), folder)
    run(["init", "--quiet"], folder)
    run(["symbolic-ref", "HEAD", f"refs/heads/{SERIES}"], folder)
    for key, value in SETTINGS.items():
        run(["config", key, value], folder)
    commit(folder, str(Pin.read(pin)))
    run(["tag", PRISTINE], folder)
    for path in patch_paths(patches):
        apply(path, folder)
        patch = Patch.read(path)
        commit(folder, f"{patch.title}\n\n{patch.header}\n")


def rebase(folder: Path, source: Path | None, onto: Path, pin: Path = PIN, patches: Path = PATCHES) -> str | None:
    """Makes the repository, then moves the series to the llama.cpp of another archive, by 3-way merges.

    Writes the pin of that archive next to the repository. Returns None, or what to do about the first conflict, which
    is left in the repository.
    """
    edit(folder, source, pin, patches)
    run(["tag", OLD_PRISTINE, PRISTINE], folder)
    run(["checkout", "--quiet", "--detach", PRISTINE], folder)
    run(["rm", "-r", "--quiet", "."], folder)
    new = unpack_other(onto, Pin.read(pin), folder)
    commit(folder, str(new))
    run(["tag", "--force", PRISTINE], folder)
    new_pin(folder).write_text(new.text(pin.read_text("utf-8")), "utf-8")

    result = git(["rebase", "--quiet", "--onto", PRISTINE, OLD_PRISTINE, SERIES], folder)
    if result.returncode == 0:
        return None
    files = run(["diff", "--name-only", "--diff-filter=U"], folder).splitlines()
    if not files:
        raise PrepareError(f"git rebase failed in {folder}: {result.stderr.strip()}")
    number, end = ((folder / ".git/rebase-merge" / name).read_text().strip() for name in ("msgnum", "end"))
    title = run(["show", "--no-patch", "--format=%s", "REBASE_HEAD"], folder).strip()
    what = f"{folder}: patch {number} of {end} ('{title}') conflicts with {new} in"
    return "\n    ".join([what, *files]) + "\nResolve it there, as native/patches/README.md says."


def new_pin(folder: Path) -> Path:
    """Where a rebase in this folder leaves the pin of the new llama.cpp."""
    return folder.with_name("new_llama_cpp.pin")


def export(folder: Path, patches: Path = PATCHES) -> list[Path]:
    """Writes the commits back as patch files, with fresh numbers."""
    if (folder / ".git" / "rebase-merge").exists():
        raise PrepareError(f"a rebase is not finished in {folder}: git rebase --continue (or --skip, or --abort) there")
    if run(["status", "--porcelain"], folder):
        raise PrepareError(f"{folder} has changes that are in no commit: commit or drop them first")
    commits = run(["rev-list", "--reverse", f"{PRISTINE}..HEAD"], folder).split()
    series = []
    for commit_id in commits:
        title, _, header = run(["show", "--no-patch", "--format=%B", commit_id], folder).partition("\n")
        # whole blob ids: a 3-way merge looks for the old file by them, whatever lines of context there are
        diff = run(["diff-tree", "-p", "-U2", "--full-index", "--no-renames", "--no-commit-id", commit_id], folder)
        series.append((title.strip(), write_header(title, header), diff))
    for path in patch_paths(patches):
        path.unlink()
    return [write_patch(patches, number, *parts) for number, parts in enumerate(series, 1)]


def write_header(title: str, header: str) -> str:
    fields = header_fields(header)
    missing = [field for field in FIELDS if field not in fields]
    if missing:
        raise PrepareError(f"the commit '{title}' has no line '{missing[0]}: ...'; see native/patches/README.md")
    return "".join(f"{field}: " + "\n  ".join(fields[field]) + "\n" for field in FIELDS)


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


def main() -> None:
    parser = argparse.ArgumentParser(description="Edits pymtp's patches to llama.cpp in a git repository.")
    parser.add_argument("action", choices=["edit", "rebase", "export"])
    parser.add_argument("--source", type=Path, help="archive or directory to use instead of a download")
    parser.add_argument("--onto", type=Path, help="archive with another llama.cpp, for rebase")
    options = parser.parse_args()
    if options.action == "rebase" and not options.onto:
        parser.error("rebase needs --onto ARCHIVE (make patches-rebase LLAMA_CPP=archive)")
    folder = BUILD / "patches"
    try:
        if options.action == "edit":
            edit(folder, options.source)
            print(f"{folder}: one commit for each patch. Change them, then run make patches-export")
        elif options.action == "rebase":
            if conflict := rebase(folder, options.source, options.onto):
                sys.exit(conflict)
            print(f"{folder}: the whole series is rebased; native/patches/README.md says what comes next")
        else:
            for path in export(folder):
                print(path.name)
    except PrepareError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
