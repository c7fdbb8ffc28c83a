"""Errors that the command line itself finds, before or after pymtp is called.

app.py turns them into exit codes; nothing else catches them.
"""

import typer

DEBUG = "pymtp.debug"
"""Key in the context's `meta`: whether app.py shows tracebacks."""


class CommandError(Exception):
    """Input or output cannot be used. The message is one line that names the fix."""


class OutputClosed(Exception):
    """The reader of stdout has closed it, as `head` does. Not an error: it has read enough."""


def remember_debug(ctx: typer.Context, wanted: bool) -> bool:
    """What --debug does."""
    ctx.meta[DEBUG] = wanted
    return wanted
