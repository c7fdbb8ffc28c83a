"""Puts text into the clipboard: by the system's own program, else by asking the terminal (OSC 52).

Knows text; nothing about where it comes from.
"""

import base64
import os
import shutil
import subprocess
import sys
from contextlib import suppress

from ..output import can_redraw


def copy(text: str) -> str | None:
    """Copy `text`; return what took it, or None if nothing could."""
    for command in _programs():
        if shutil.which(command[0]):
            with suppress(OSError, subprocess.SubprocessError):
                # xclip stays in the background to serve the clipboard: it must not hold our streams
                null = subprocess.DEVNULL
                subprocess.run(command, input=text.encode(), stdout=null, stderr=null, timeout=5, check=True)
                return command[0]
    stream = next((one for one in (sys.stdout, sys.stderr) if one and can_redraw(one)), None)
    if stream is None:
        return None
    stream.write(f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a")
    stream.flush()
    return "the terminal"


def _programs() -> list[list[str]]:
    if sys.platform == "darwin":
        return [["pbcopy"]]
    if os.environ.get("WAYLAND_DISPLAY"):
        return [["wl-copy"]]
    if os.environ.get("DISPLAY"):
        return [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    return [["clip.exe"]] if sys.platform == "win32" or os.environ.get("WSL_DISTRO_NAME") else []
