"""The `pymtp` command: its sub-commands, and the one place where errors become exit codes.

0    done
1    an error, one line on stderr
2    wrong usage, one line on stderr
130  stopped by Ctrl-C
141  the reader of stdout closed it (what SIGPIPE makes of other programs)
"""

import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from errno import ENOMEM
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import pymtp
from pymtp.errors import InvalidParameter, PymtpError

from .commands import COMMANDS, HEADS
from .flags import OF_LLAMA_CPP, Values, answer, first_unknown, parse_without_schemas, values_of_flags, with_flags
from .llama_cpp import from_variables, translated
from .output import CommandError, Output, OutputClosed, print_note, print_stderr
from .table import TABLE, flags_of

# typer took over click's exceptions and moved them between releases; in all of them the parent of
# BadParameter is the usage error that every parsing problem derives from.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


# fmt: off
_BASIC = {
    "model_file", "hf", "n_gpu_layers", "n_threads", "n_ctx", "temperature", "seed", "prompt_text", "prompt_file",
    "system", "max_tokens", "quiet", "as_json", "color", "draft", "draft_model", "draft_max", "n_prompt", "n_gen",
    "n_repeat", "prompts", "form", "resume", "host", "port", "n_slots", "aliases",
    "api_keys", "output", "type", "help",
}
# fmt: on
"""What -h shows; --help shows everything."""
_LAST = "Output"
_SHORT, _DEBUG = "pymtp.short_help", "pymtp.debug"
"""Keys in the context's `meta`: whether the short help is asked for, and tracebacks."""


def groups(command: Any, ctx: Any) -> Iterator[tuple[str, list[Any]]]:
    """The options of a command by group, without empty groups; those of typer come last."""
    options = {param.name: param for param in command.get_params(ctx) if param.param_type_name == "option"}
    for title, flags in TABLE.items():
        found = [options.pop(flag.name) for flag in flags if command.name in flag.commands and flag.name in options]
        if title == _LAST:
            found += options.values()
        if found:
            yield title, found


def rows(options: Sequence[Any], ctx: Any) -> list[tuple[str, str]]:
    """Flags and help text of each option that is not hidden."""
    records = [option.get_help_record(ctx) for option in options]
    return [(str(flags), str(text)) for flags, text in filter(None, records)]


class _Helps:
    """The help of commands and of groups: options in groups, examples at the end, written as all output is."""

    epilog: str | None
    help_of_help = ""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The groups; for -h only what most people need."""
        for title, options in groups(self, ctx):
            shown = [option for option in options if option.name in _BASIC] if ctx.meta.get(_SHORT) else options
            if shown:
                with formatter.section(title):
                    formatter.write_dl(rows(shown, ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The examples unchanged, one per line."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.strip().splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line.strip()}\n")

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.callback = _show_help
            option.help = self.help_of_help or option.help
        return option


class PymtpCommand(_Helps, TyperCommand):
    """Adds to usage errors what their line names: the command, and the flag that set a parameter."""

    help_of_help = "Show the most important flags (-h) or all of them (--help) and exit."

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        parse_without_schemas(self.get_params(ctx))
        known = _flags(self)
        if _name(ctx) in OF_LLAMA_CPP:
            read = {name for param in self.params for name in param.envvar or ()}
            args = [*from_variables(os.environ, read, known, print_note), *args]
            args = translated(args, known, values_of_flags(self.params), print_note)
        _refuse_unknown(args, ctx, ctx.parent, ends=False)
        ctx.meta[_SHORT] = "-h" in args and "--help" not in args
        ctx.meta[_DEBUG] = "--debug" in args
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            # the parser does not know which command lacks the value
            error.ctx = getattr(error, "ctx", None) or ctx  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidParameter as error:
            # flags are named as pymtp names parameters
            flag: Any = next((param for param in self.params if param.name == error.name), None)
            if flag is None:
                raise
            raise typer.BadParameter(str(error).removeprefix(f"{flag.name} "), ctx=ctx, param=flag) from error


class PymtpGroup(_Helps, TyperGroup):
    """Ends every command with an exit code and at most one line on stderr."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        parse_without_schemas(self.get_params(ctx))
        _refuse_unknown(args, ctx, ctx, ends=True)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        first = args[0] if args and ctx.parent is None else ""
        if " " in first or first.endswith(".gguf"):
            what = "prompt" if " " in first else "model"
            raise _UsageError(f"a command comes before the {what}: pymtp run, or pymtp chat", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if ctx.meta.get(_DEBUG) and ctx.parent is None and not isinstance(error, typer.Exit):
                print_stderr(traceback.format_exc().rstrip("\n"))
            raise

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print_note(message)
            try:
                code = super().main(*args, **{**kwargs, "standalone_mode": False})
            except Exception as error:
                code = _report(error)
        sys.exit(code if isinstance(code, int) else 0)


def _name(ctx: Any) -> str:
    """The command's name, with those of the groups that it is in."""
    return str(ctx.command_path).partition(" ")[2]


def _refuse_unknown(args: list[str], ctx: Any, group: Any, *, ends: bool) -> None:
    """Raise a usage error for a flag that the parser would take for others, or other commands of a group have."""
    if name := first_unknown(args, ctx.command.params, _flags(ctx.command), ends=ends):
        commands = {f"{_name(group)} {each}".strip(): one for each, one in group.command.commands.items()}
        others = {each: _flags(one) for each, one in commands.items() if one is not ctx.command}
        if text := answer(name, others):
            raise _UsageError(text, ctx)


def _flags(command: Any) -> set[str]:
    names = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
    return {name for name in names if name.startswith("-")} | {"-h", "--help"}


_NO_MEMORY = ("can't start new thread", "failed to map segment", "<built-in function compile> returned NULL")
"""What is said where a thread finds no memory, an extension module that is imported late, or Python's compiler."""


def _report(error: Exception) -> int:
    """Print one line about the error and return the exit code; what is not for users (a bug) is raised again."""
    if isinstance(error, OutputClosed):
        return 141
    if isinstance(error, typer.Abort):
        return 130
    is_memory = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == ENOMEM)
    if isinstance(error, _UsageError):
        command = error.ctx.command_path if error.ctx else "pymtp"  # type: ignore[attr-defined]
        message, code = f"{_usage_text(error)} (see {command} --help)", 2
    elif isinstance(error, (CommandError, PymtpError)):
        message, code = str(error), 1
    elif is_memory or any(said in str(error) for said in _NO_MEMORY):
        fix = "free some, or use a smaller -c"
        message, code = f"the memory has run out, or more threads are not allowed; {fix}", 1
    else:
        raise error
    print_note(" ".join(message.split()))
    return code


def _usage_text(error: Any) -> str:
    param = getattr(error, "param", None)
    if param is not None and error.message:
        return f"Invalid value for {'/'.join(param.opts)}{_variable(error.ctx, param)}: {error.message}"
    return str(error.format_message()).rstrip(".")


def _variable(ctx: Any, param: Any) -> str:
    """The variable that a flag's value comes from, for its error."""
    source = ctx and ctx.get_parameter_source(param.name)
    named = [name for name in param.envvar or () if name in os.environ]
    return f" ({named[0]})" if named and source and source.name == "ENVIRONMENT" else ""


def _show_help(ctx: Any, option: object, wanted: bool) -> None:
    if wanted:
        more = f"\nAll flags: {ctx.command_path} --help\n" if ctx.meta.get(_SHORT) else ""
        Output().write(f"{ctx.get_help()}\n{more}")
        raise typer.Exit


def _show_version(wanted: bool) -> None:
    if wanted:
        output = Output()
        kinds = dict.fromkeys(each.backend for each in pymtp.devices())
        output.write(f"{pymtp.version_text()}; computes on {', '.join(kinds)}\n")
        raise typer.Exit


_EXAMPLES = """
pymtp run --color "Write a Python function that reverses a string."
pymtp chat
pymtp serve -m model.gguf --port 8080
pymtp inspect model.gguf
pymtp bench model.gguf --draft-max 0-3,auto
pymtp --install-completion
"""


def _group(**options: Any) -> typer.Typer:
    settings = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(
        cls=PymtpGroup, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=settings, **options
    )


def _add(group: typer.Typer, function: str, text: str, module: str) -> None:
    """Add a command whose module is imported when it is called."""
    name = function.rstrip("_").replace("_", "-")

    def command(own: Values) -> None:
        getattr(import_module(f"{__package__}.{module}"), function)(own)

    about, _, examples = text.partition("\n\n    Examples:\n")
    add = group.command(name, cls=PymtpCommand, help=about, epilog=cleandoc(examples.rstrip()))
    add(with_flags(flags_of(name), command))


app = _group(epilog=_EXAMPLES)
_heads = _group(name="heads", help="Extract, attach, quantize and train MTP heads.")
for _function, _text in COMMANDS.items():
    _add(app, _function, _text, module=_function)
for _function, _text in HEADS.items():
    _add(_heads, _function, _text, module="heads")
app.add_typer(_heads)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("-V", "--version", callback=_show_version, is_eager=True, help="Show version and exit.")
    ] = False,
) -> None:
    """Run GGUF models that draft with their own MTP heads."""
    if ctx.invoked_subcommand is None:
        Output().write(f"{ctx.get_help()}\n")
