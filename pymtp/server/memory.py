"""How the process allocates memory.

Knows glibc; nothing of what the memory is for.
"""

import ctypes
import sys

LARGE = 128 << 10
"""Bytes of a block from which on it is the system's own: glibc's default, before it adapts."""
_M_MMAP_THRESHOLD = -3  # malloc.h


def return_large_blocks() -> None:
    """Have freed blocks of LARGE bytes and more returned to the system. Does nothing where there is no glibc.

    Else glibc raises that limit to what was freed, up to 32 MiB, and keeps such blocks. Those of graphs, which come and
    go, then leave gaps between what lives longer: after some thousand requests a server holds twice what it uses.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        mallopt(_M_MMAP_THRESHOLD, LARGE)
