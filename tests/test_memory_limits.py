"""A process that may take no more memory ends with one line that says so, wherever it runs out."""

from __future__ import annotations

import subprocess
import sys

import pytest

MIB = 1 << 20
RUN = (
    "import resource, sys; n = int(sys.argv.pop(1)); resource.setrlimit(resource.RLIMIT_AS, (n, n));"
    "from pymtp_cli.main import main; main()"
)


def run_within(n_mib: int) -> subprocess.CompletedProcess[str]:
    arguments = ["run", "hi", "-n", "4", "-c", "512", "-t", "1", "--temp", "0"]
    return subprocess.run(
        [sys.executable, "-c", RUN, str(n_mib * MIB), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="address space can be limited on Linux only")
def test_a_run_that_finds_no_memory_ends_with_one_line() -> None:
    n_good, n_said = 0, 0
    for n_mib in range(40, 400, 2):
        done = run_within(n_mib)
        if done.returncode == 0:
            n_good += 1
            if n_good == 5:
                break
            continue
        lines = done.stderr.strip().splitlines()
        if "Traceback" in done.stderr and not n_said:  # Python itself cannot import
            continue
        assert done.returncode == 1, (n_mib, done)
        assert lines[-1].startswith("pymtp: ") and "damaged, llama.cpp" not in done.stderr, (n_mib, done.stderr)
        n_said += 1
    assert n_good == 5 and n_said >= 5
