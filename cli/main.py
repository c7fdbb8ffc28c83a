"""The `pymtp` command: its sub-commands, and the one place where errors become exit codes.

0    done
1    an error, one line on stderr
2    wrong usage, one line on stderr
130  stopped by Ctrl-C
141  the reader of stdout closed it (what SIGPIPE makes of other programs)
"""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .errors import CommandError, OutputClosed
from .options import DEBUG
from .run import run

# typer took over click's exceptions and moved them between releases; in all of them the parent of
# BadParameter is the usage error that every parsing problem derives from.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class PymtpGroup(TyperGroup):
    """Ends every command with an exit code and at most one line on stderr."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if ctx.meta.get(DEBUG) and not isinstance(error, typer.Exit):
                traceback.print_exc()
            raise

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except Exception as error:
            code = _report(error)
        sys.exit(code if isinstance(code, int) else 0)


def _report(error: Exception) -> int:
    """Say what went wrong in one line and return the exit code; an error of ours in the code goes on."""
    if isinstance(error, OutputClosed):
        return 141
    if isinstance(error, typer.Abort):
        return 130
    if isinstance(error, _UsageError):
        return _complain(f"{_usage_text(error)} (see {_command_path(error)} --help)", 2)
    if isinstance(error, CommandError) or _is_ours(error):
        return _complain(str(error), 1)
    raise error


def _complain(message: str, code: int) -> int:
    typer.echo(f"pymtp: {' '.join(message.split())}", err=True)
    return code


def _is_ours(error: Exception) -> bool:
    # No import: where pymtp itself cannot be imported, the error at hand is the reason why.
    errors = sys.modules.get("pymtp.errors")
    return errors is not None and isinstance(error, errors.PymtpError)


def _usage_text(error: Any) -> str:
    return str(error.format_message()).rstrip(".")


def _command_path(error: Any) -> str:
    return error.ctx.command_path if error.ctx else "pymtp"


def _show_version(wanted: bool) -> None:
    if wanted:
        import pymtp

        typer.echo(pymtp.version_text())
        raise typer.Exit


app = typer.Typer(
    cls=PymtpGroup,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show version and exit.")
    ] = False,
) -> None:
    """Run GGUF models that draft with their own MTP heads."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def main() -> None:
    """Entry point of the installed command."""
    app(prog_name="pymtp")
