"""Runs the checks that a change needs: those of the files that differ from a commit, uncommitted and new ones too.

    python tests/check_change.py [--list] [COMMIT]      COMMIT: origin/main, or main; --list only shows the checks

Knows which files a check is about; nothing about what it does. Stops at the first one that fails.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = str(ROOT / ".venv" / "bin" / "python")


@dataclass(frozen=True)
class Check:
    """A command for files whose path matches `files`; it is left out where `program` is missing."""

    files: str
    command: str
    program: str = "make"


CHECKS = (
    Check(r"", "make lint"),
    Check(r"", "make test"),
    Check(r"^native/(src|include|patches|cmake|tests)/|^CMakeLists", "make check-native"),
    Check(r"^native/src/cpu/", "make check-emulated", "qemu-aarch64"),
    Check(r"^native/(src/abi|include)/|^native/src/engine/mtp-state", "make fuzz-native", "clang++"),
    Check(r"^native/src/(abi|engine|images|rpc)/", "make soak-address"),
    Check(r"^pymtp/serving/(loop|generation)\.py|^native/src/abi/", "make check-threads"),
    Check(
        r"^native/src/(engine|heads|rpc)/",
        f"env PYTHONPATH=tests {PYTHON} -m pytest -p lagging_device tests/test_isolation.py",
    ),
    Check(r"^pymtp/server/", "make soak-server"),
    Check(r"^pymtp/server/", f"{PYTHON} tests/llama_server_tests.py"),
    Check(r"^native/src/(engine|heads)/|^tests/families\.py", "make families"),
    Check(r"^native/(cmake|patches)/|^CMakeLists|^pyproject", f"{PYTHON} -m pytest -m slow tests/test_wheel.py"),
    Check(r"^requirements/.*\.in|^pyproject", "make lock", "uv"),
)


def checks_of(paths: Iterable[str]) -> list[Check]:
    """The checks that any of these paths needs, in the order of the table."""
    changed = list(paths)
    return [check for check in CHECKS if any(re.search(check.files, path) for path in changed)]


def git(*arguments: str) -> list[str]:
    """The lines that git prints; none where it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed_since(commit: str) -> list[str]:
    """Files that differ from where this branch left `commit`, with those that git does not know yet."""
    (base,) = git("merge-base", "HEAD", commit) or [commit]
    return git("diff", "--name-only", base) + git("ls-files", "--others", "--exclude-standard")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?")
    parser.add_argument("--list", action="store_true", help="show the checks")
    given = parser.parse_args(arguments)
    commit = given.commit or next((name for name in ("origin/main", "main") if git("rev-parse", "-q", name)), "HEAD")
    if not git("rev-parse", "-q", "--verify", f"{commit}^{{commit}}"):
        print(f"pymtp: {commit} is not a commit", file=sys.stderr)
        return 2
    for check in checks_of(changed_since(commit)):
        missing = shutil.which(check.program) is None
        print(check.command + (f" (left out: there is no {check.program})" if missing else ""), flush=True)
        if not given.list and not missing and subprocess.run(shlex.split(check.command), cwd=ROOT).returncode:
            print(f"pymtp: {check.command} failed", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
