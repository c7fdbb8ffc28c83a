"""Makes the patched llama.cpp tree that CMake builds, and says nothing when it is up to date.

The series is applied as a unit: to a pristine copy whose digest the pin records, in a scratch folder. Only then
are the files that differ copied to the tree, so that a changed patch rebuilds what it touches and no more.
The tree carries a stamp (series hash, digest of the result); where either differs everything starts over.

    python native/prepare_llama_cpp.py tree --tree DIR --cache DIR [--source ARCHIVE_OR_DIR] [--patches DIR]
    python native/prepare_llama_cpp.py fetch --cache DIR
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from llama_cpp_source import Pin, PrepareError, fetch_archive, sync, tree_digest, unpack
from patch_series import apply, patch_paths, series_hash

NATIVE = Path(__file__).resolve().parent
PIN = NATIVE / "llama_cpp.pin"
PATCHES = NATIVE / "patches"
STAMP = "pymtp-stamp.json"


def prepare(tree: Path, source: Path | None, cache: Path, pin: Path = PIN, patches: Path = PATCHES) -> bool:
    """Brings the tree up to date. Returns whether anything had to be done."""
    series = series_hash(pin, patches)
    if is_current(tree, series):
        return False
    source = source or fetch_archive(Pin.read(pin), cache)
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tree.parent, prefix="llama.cpp-scratch-") as scratch:
        unpack(source, Pin.read(pin), Path(scratch))
        for patch in patch_paths(patches):
            apply(patch, Path(scratch))
        (tree / STAMP).unlink(missing_ok=True)  # a stamp must not outlive the tree that it describes
        sync(Path(scratch), tree)
        stamp = {"series": series, "tree": tree_digest(Path(scratch)), "source": str(source.resolve())}
    (tree / STAMP).write_text(json.dumps(stamp, indent=2) + "\n", "utf-8")
    return True


def is_current(tree: Path, series: str) -> bool:
    try:
        stamp = json.loads((tree / STAMP).read_text("utf-8"))
        return bool(stamp["series"] == series and stamp["tree"] == tree_digest(tree))
    except (OSError, ValueError, KeyError):
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description="Prepares the llama.cpp sources that pymtp builds.")
    parser.add_argument("action", choices=["tree", "fetch"])
    parser.add_argument("--tree", type=Path, help="where the patched tree goes")
    parser.add_argument("--cache", type=Path, required=True, help="where a downloaded archive is kept")
    parser.add_argument("--source", type=Path, help="archive or directory to use instead of a download")
    parser.add_argument("--patches", type=Path, default=PATCHES, help="the series; a folder without any: none")
    options = parser.parse_args()
    try:
        if options.action == "fetch":
            fetch_archive(Pin.read(PIN), options.cache)
        else:
            prepare(options.tree, options.source, options.cache, patches=options.patches)
    except PrepareError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
