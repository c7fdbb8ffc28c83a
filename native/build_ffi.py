"""Writes the C source of pymtp._native: cffi in API mode, from the public headers' marked regions and llama.cffi.

The module also carries the id that it was compiled for (PYMTP_BUILT_FOR), so that Python can compare it with
what the library says of itself.

    python native/build_ffi.py OUTPUT_C HEADER_OR_CFFI...
"""

import re
import sys
from pathlib import Path

import cffi

PREAMBLE = """
#include "pymtp-text.h"
#include "pymtp-abi.h"
#include "ggml-backend.h"
#include "llama.h"
"""


def declarations(header: Path) -> str:
    """What lies between a header's two markers, in the C that cffi reads; of other files everything."""
    if header.suffix != ".h":
        return header.read_text("utf-8")
    region = re.search(r"// \[cffi begin\]\n(.*)// \[cffi end\]", header.read_text("utf-8"), re.DOTALL)
    if not region:
        raise SystemExit(f"{header.name}: the marks [cffi begin] and [cffi end] are missing")
    return region[1]


def main() -> None:
    output, *headers = sys.argv[1:]
    builder = cffi.FFI()
    for header in headers:
        builder.cdef(declarations(Path(header)))
    builder.cdef("static char *const PYMTP_BUILT_FOR;")
    builder.set_source("pymtp._native", PREAMBLE)
    builder.emit_c_code(output)


if __name__ == "__main__":
    main()
