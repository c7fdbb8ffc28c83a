"""Writes the C source of pymtp._native: cffi in API mode, from the marked region of pymtp.h.

The module also carries the id that it was compiled for (PYMTP_BUILT_FOR), so that Python can compare it with
what the library says of itself.

    python native/build_ffi.py PYMTP_H OUTPUT_C
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cffi

PREAMBLE = """
#include "pymtp.h"
#include "pymtp-abi.h"
"""


def declarations(header: str) -> str:
    """What lies between the two markers, in the C that cffi reads."""
    region = re.search(r"// \[cffi begin\]\n(.*)// \[cffi end\]", header, re.DOTALL)
    if not region:
        raise SystemExit("pymtp.h: the marks [cffi begin] and [cffi end] are missing")
    return region[1].replace("PYMTP_API ", "") + "\nstatic char *const PYMTP_BUILT_FOR;\n"


def main() -> None:
    header, output = sys.argv[1:]
    builder = cffi.FFI()
    builder.cdef(declarations(Path(header).read_text("utf-8")))
    builder.set_source("pymtp._native", PREAMBLE)
    builder.emit_c_code(output)


if __name__ == "__main__":
    main()
