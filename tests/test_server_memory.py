"""Large blocks are the system's own in a server, also after larger ones were freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

N_MAPPED = """
import ctypes, sys
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                     "fsmblks", "uordblks", "fordblks", "keepcost")]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype, libc.free.argtypes = Info, ctypes.c_void_p, [ctypes.c_void_p]
if len(sys.argv) > 1:
    from pymtp.server.run import return_large_blocks
    return_large_blocks()
libc.free(libc.malloc(20 << 20))
before = libc.mallinfo2().hblks
libc.malloc(1 << 20)
print(libc.mallinfo2().hblks - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
@pytest.mark.parametrize(("arguments", "n_mapped"), [((), "0"), (("set",), "1")])
def test_large_blocks_are_mapped_after_larger_ones_were_freed(arguments: tuple[str, ...], n_mapped: str) -> None:
    done = subprocess.run([sys.executable, "-c", N_MAPPED, *arguments], capture_output=True, text=True)
    if "mallinfo2" in done.stderr:
        pytest.skip("needs glibc 2.33")
    assert done.stdout.strip() == n_mapped, done.stderr
