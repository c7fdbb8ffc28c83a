"""Entry point of the installed command.

Owns Ctrl-C before the command itself runs. Knows nothing about commands: they are in app.py.
"""

import sys


def main() -> None:
    """Run the command line; ends the process with an exit code."""
    try:
        # Not at module level: imports take a moment, in which Ctrl-C may come.
        from .app import app

        app(prog_name="pymtp")
    except KeyboardInterrupt:
        sys.exit(130)
