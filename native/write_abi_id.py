"""Writes the id that names what a libllama was built from: pymtp-abi.h and pymtp-abi.cpp.

Two small files of their own, because the id changes with every edit: nothing else is compiled again for it.

    python native/write_abi_id.py OUTPUT_FOLDER
"""

import sys
from pathlib import Path

from llama_cpp_source import Pin
from patch_series import series_hash

NATIVE = Path(__file__).resolve().parent
FOLDERS = ("src", "include")
SUFFIXES = (".cpp", ".h", ".cu", ".cuh")

SOURCE = """\
#include "pymtp-abi.h"
#include "pymtp.h"

const char * pymtp_abi_id(void) {
    return PYMTP_BUILT_FOR;
}
"""


def abi_id(native: Path = NATIVE) -> str:
    """The pinned version, and a hash over the pin, the patches and the engine's files for all backends."""
    pin = native / "llama_cpp.pin"
    paths = [path for folder in FOLDERS for path in (native / folder).rglob("*") if path.suffix in SUFFIXES]
    engine = {path.relative_to(native).as_posix(): path for path in paths}
    return f"{Pin.read(pin)} + {series_hash(pin, native / 'patches', engine)[:12]}"


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / "pymtp-abi.h").write_text(f'#define PYMTP_BUILT_FOR "{abi_id()}"\n', "utf-8")
    (folder / "pymtp-abi.cpp").write_text(SOURCE, "utf-8")


if __name__ == "__main__":
    main()
