"""Writes the id that names what a libllama was built from: pymtp-abi.h and pymtp-abi.cpp.

Two small files of their own, because the id changes with every edit: nothing else is compiled again for it.

    python native/write_abi_id.py OUTPUT_FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from llama_cpp_source import Pin
from patch_series import series_hash

NATIVE = Path(__file__).resolve().parent

HEADER = """\
#define PYMTP_BUILT_FOR "{id}"
"""

SOURCE = """\
#include "pymtp-abi.h"
#include "pymtp.h"

extern "C" PYMTP_API const char * pymtp_abi_id(void) {
    return PYMTP_BUILT_FOR;
}
"""


def abi_id() -> str:
    pin = NATIVE / "llama_cpp.pin"
    folders = (NATIVE / "src", NATIVE / "include")
    engine = [path for folder in folders for path in folder.iterdir() if path.suffix in (".cpp", ".h")]
    return f"{Pin.read(pin)} + {series_hash(pin, NATIVE / 'patches', engine)[:12]}"


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / "pymtp-abi.h").write_text(HEADER.format(id=abi_id()), "utf-8")
    (folder / "pymtp-abi.cpp").write_text(SOURCE, "utf-8")


if __name__ == "__main__":
    main()
