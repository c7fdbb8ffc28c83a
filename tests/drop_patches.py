"""Takes patches out, one at a time, and shows whether anything misses them: `make patches-drop-check`.

    PYTHONPATH=native python tests/drop_patches.py [--source ARCHIVE_OR_DIR] [NAME...]

NAME: a part of a patch's name; default: all.

Without a patch native/src may not compile, or its Proved-by tests fail: then it is needed. It is taken out by a 3-way
merge, but for lines that others change, too.
One whose tests all pass can go, as llama.cpp has what it was for, or it lacks a test. Each takes a build, of what
differs, and its tests, slow ones too: minutes. Native tests are not run, and tests that are skipped prove nothing.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import edit_patches
from edit_patches import PRISTINE
from link_llama_cpp import link
from patch_series import Patch, header_fields, patch_paths
from prepare_llama_cpp import NATIVE, PATCHES

ROOT = NATIVE.parent
FOLDER = ROOT / "build" / "drop"
REPOSITORY = FOLDER / "repository"
SERIES = FOLDER / "patches"
PACKAGE = FOLDER / "package"
"""Where pymtp is installed without the patch."""
NO_CHECKOUT = """import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable")]
"""
"""The sitecustomize.py of servers that tests start: an editable install comes before what PYTHONPATH names."""


def without(dropped: Patch, commit: str, source: Path | None) -> str:
    """What happens without this patch, in one line."""
    edit_patches.run(["reset", "--hard", "--quiet"], REPOSITORY)
    edit_patches.run(["revert", "--no-commit", "--strategy-option=ours", commit], REPOSITORY)
    shutil.rmtree(SERIES, ignore_errors=True)
    shutil.copytree(PATCHES, SERIES)
    (SERIES / "9999-reverted.patch").write_text(edit_patches.run(["diff", "HEAD"], REPOSITORY), "utf-8")
    log = FOLDER / f"{dropped.path.stem}.log"
    if run(install(source), log, CMAKE_ARGS=f"-Dnative_patches_folder={SERIES}") != 0:
        errors = re.findall(r"(\w[\w.-]*:\d+):\d+: error: (.*)", log.read_text("utf-8", "replace"))
        return f"needed by native/src: {' '.join(errors[0])}" if errors else f"cannot be built, see {log}"
    tests = [str(ROOT / test) for test in header_fields(dropped.header)["Proved-by"] if test.startswith("tests/")]
    if not tests:
        return "not shown: native tests alone prove it"
    (PACKAGE / "sitecustomize.py").write_text(NO_CHECKOUT, "utf-8")
    link(PACKAGE / "pymtp" / "lib", FOLDER / "lib")
    env = {
        "PYTHONPATH": os.pathsep.join([str(PACKAGE), sysconfig.get_path("purelib")]),
        "LLAMA_CPP_LIB_PATH": str(FOLDER / "lib"),  # a process has one library of a name: not that of this checkout
    }
    status = run([sys.executable, "-S", "-m", "pytest", "-q", "-m", "", "-n", "0", *tests], log, **env)
    *_, last = log.read_text("utf-8", "replace").strip().splitlines()
    if status < 0:
        return f"needed: the tests end by signal {-status}"
    if status > 1 or (status == 0 and (" passed" not in last or "skipped" in last)):
        return f"not shown: {last.strip('= ')}, see {log}"
    return ("needed: " if status else "CAN GO: ") + last.strip("= ")


def install(source: Path | None) -> list[str]:
    """The command that builds pymtp, and installs it in a folder of its own."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-build-isolation", "-v"]
    command += ["--no-deps", "--upgrade", "--target", str(PACKAGE), str(ROOT)]
    command += ["--config-settings", f"build-dir={FOLDER / 'build'}"]
    return (
        [*command, "--config-settings", f"cmake.define.PYMTP_LLAMA_CPP_DIR={source.resolve()}"] if source else command
    )


def run(command: list[str], log: Path, **env: str) -> int:
    """The exit status of the command; what it says is in the log. Its folder holds no pymtp that could be imported."""
    with log.open("w", encoding="utf-8") as file:
        return subprocess.run(command, cwd=FOLDER, stdout=file, stderr=file, env={**os.environ, **env}).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="Shows which patches are still needed.")
    parser.add_argument("names", nargs="*", help="parts of the patches' names (default: all)")
    parser.add_argument("--source", type=Path, help="archive or directory to use instead of a download")
    options = parser.parse_args()
    patches = [Patch.read(path) for path in patch_paths(PATCHES)]
    shutil.rmtree(REPOSITORY, ignore_errors=True)
    REPOSITORY.parent.mkdir(parents=True, exist_ok=True)
    edit_patches.edit(REPOSITORY, options.source)
    commits = edit_patches.run(["rev-list", "--reverse", f"{PRISTINE}..HEAD"], REPOSITORY).split()
    for patch, commit in zip(patches, commits, strict=True):
        if not options.names or any(name in patch.path.name for name in options.names):
            print(f"{patch.path.stem}: {without(patch, commit, options.source)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
