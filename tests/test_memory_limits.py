"""A process that may take no more memory ends with one line that says so, wherever it runs out."""

from __future__ import annotations

import os
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


RESIDUAL = """
import resource
from pymtp.sampling.distribution import Distribution
n = 1 << 18
many, source = Distribution(range(n), [1 / n] * n), Distribution([5, 7], [0.5, 0.5])
limits = resource.getrlimit(resource.RLIMIT_AS)
n_bytes = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (n_bytes, limits[1]))
found = many.sample_residual(source, 1.0, 0.5)
resource.setrlimit(resource.RLIMIT_AS, limits)
print(found, Distribution([5, 9], [0.5, 0.5]).sample_residual(Distribution([7], [1.0]), 1.0, 0.2))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address space can be limited on Linux only")
def test_a_residual_that_found_no_memory_leaves_nothing_for_the_next() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RESIDUAL],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},  # nothing free is left over for it
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["-1", "5"]
