"""Writes docs/demo.svg: a terminal in which the embedded model answers, accepted drafts in colour, from a real run.

    python docs/write_demo.py

Speeds differ from run to run; the text and its colours do so only where kernels round differently.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

FILE = Path(__file__).with_name("demo.svg")
COLUMNS = 112
COMMAND = (
    *("pymtp", "run", "--color", "--draft-max", "3", "--temp", "0"),
    "Write a Python function that checks whether a number is prime.",
)


def main() -> None:
    FILE.write_text(svg(*run()), encoding="utf-8")


def run() -> tuple[str, str]:
    """Run COMMAND with its stdout at a terminal; what it writes there, escape sequences included, and to stderr."""
    with tempfile.TemporaryDirectory() as cache:  # no speeds from earlier runs
        controller, terminal = pty.openpty()
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        environment |= {"TERM": "xterm-256color", "XDG_CACHE_HOME": cache, "COLUMNS": str(COLUMNS)}
        command = [sys.executable, "-m", "pymtp_cli", *COMMAND[1:]]
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        with subprocess.Popen(command, env=environment, stdin=null, stdout=terminal, stderr=pipe) as process:
            os.close(terminal)
            text = _everything(controller)
            statistics = process.stderr.read().decode() if process.stderr else ""
        if process.returncode:
            raise SystemExit(f"the demo failed: {statistics}")
    return text.replace("\r", ""), statistics


def _everything(controller: int) -> str:
    data = b""
    try:
        while block := os.read(controller, 65536):
            data += block
    except OSError:  # nobody has the terminal open any more
        pass
    os.close(controller)
    return data.decode()


def svg(text: str, statistics: str) -> str:
    """A picture of a terminal with the command and what it has shown."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text(f"$ {shlex.join(COMMAND)}", style="bold"))
    console.print(Text.from_ansi(text.rstrip("\n")))
    console.print()
    console.print(Text.from_ansi(statistics.rstrip("\n")), style="dim")
    console.print()
    console.print(Text.assemble(("green", "green"), ": drafted by the MTP head and accepted by the model"))
    picture = console.export_svg(title="pymtp", theme=MONOKAI, unique_id="demo")
    # fonts of other sites are not loaded in a picture, and the reader's own one will do
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)


if __name__ == "__main__":
    main()
