"""The flags that say where a model's tensors go, under llama.cpp's names.

Owns names, types and help texts; what there is to go to, pymtp checks when it loads the model.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from pymtp.loading.params import LoadMode, Numa, SplitMode

from .flags import Command, with_flags
from .parsers import choice, integer, listed


def _names(text: str) -> list[str]:
    if not (names := [name.strip() for name in text.split(",") if name.strip()]):
        raise typer.BadParameter("must be none, or names of devices; see --list-devices")
    return [] if names == ["none"] else names


def _overrides(text: str) -> list[tuple[str, str]]:
    pairs = [pair.rpartition("=") for pair in text.split(",")]
    if not all(pattern and buffer_type for pattern, _, buffer_type in pairs):
        raise typer.BadParameter(f"must be PATTERN=BUFFER,..., not {text!r}")
    return [(pattern, buffer_type) for pattern, _, buffer_type in pairs]


def _show_devices(ctx: typer.Context, wanted: bool) -> bool:
    if wanted:
        from pymtp.placement.devices import devices

        typer.echo("Available devices:")
        for device in devices(ctx.params.get("rpc") or ()):
            memory = f"{device.total_bytes >> 20} MiB, {device.free_bytes >> 20} MiB free"
            typer.echo(f"  {device.name}: {device.description} ({device.kind}, {memory})")
        raise typer.Exit
    return wanted


def _flag(default: Any, *names: str, help_text: str, **options: Any) -> tuple[Any, Any]:
    kind = Any if default is None else type(default)
    return Annotated[kind, typer.Option(*names, help=help_text, **options)], default


def _choice(default: str, kind: Any, *names: str, help_text: str) -> tuple[Any, Any]:
    return Annotated[kind, choice(kind, *names, help_text=help_text)], default


_DEVICES = "Devices that take layers; none: the CPU alone.  [default: all GPUs]"
Devices = Annotated[Any, typer.Option("-dev", "--device", parser=_names, metavar="NAME,...", help=_DEVICES)]
_RPC = "Servers (pymtp rpc-server) on a private network, whose devices take layers too."
_SPLIT = "Among several devices: one takes all (none), each takes layers, or each a part of every tensor."
_SHARE = "The share of each device, such as 3,1.  [default: by free memory]"
_MAIN = "With -sm none: which device, counted from 0."
_OVERRIDE = "Put tensors whose names match PATTERN into a buffer type, such as CPU; the first match counts."
_PAIRS = "PATTERN=BUFFER,..."
_N_CPU_MOE = "Keep the experts of the first N layers on the CPU."
_FIT = "Keep on the CPU what has no room on the devices, where no other flag says what goes where."
_TARGET = "MiB that --fit leaves free on each device; the last one counts for all further ones.  [default: 1024]"
_CTX = "The smallest context that --fit may choose, where -c is not given."
_LIST = "List the devices there are, and exit."
_NUMA = "Spread threads over the nodes of a machine with several memories."
_LOAD = "How the file is read; auto: mapped, where devices allow it."
_SHARES = listed(float, "shares such as 3,1")

PLACEMENT: dict[str, tuple[Any, Any]] = {
    "device": (Devices, None),
    # eager: --list-devices comes after it, wherever that stands, and shows its devices too
    "rpc": _flag(None, "--rpc", parser=listed(str.strip), metavar="HOST:PORT,...", is_eager=True, help_text=_RPC),
    "split_mode": _choice("layer", SplitMode, "-sm", "--split-mode", help_text=_SPLIT),
    "tensor_split": _flag(None, "-ts", "--tensor-split", parser=_SHARES, metavar="N,...", help_text=_SHARE),
    "main_gpu": _flag(0, "-mg", "--main-gpu", parser=integer(0), metavar="I", help_text=_MAIN),
    "override_tensor": _flag(None, "-ot", "--override-tensor", parser=_overrides, metavar=_PAIRS, help_text=_OVERRIDE),
    "cpu_moe": _flag(False, "-cmoe", "--cpu-moe", help_text="Keep all experts on the CPU, those of the MTP heads too."),
    "n_cpu_moe": _flag(0, "-ncmoe", "--n-cpu-moe", parser=integer(0), metavar="N", help_text=_N_CPU_MOE),
    "fit": _choice("on", Literal["on", "off"], "-fit", "--fit", help_text=_FIT),
    "fit_target": _flag(None, "-fitt", "--fit-target", parser=listed(integer(0)), metavar="MIB,...", help_text=_TARGET),
    "fit_ctx": _flag(4096, "-fitc", "--fit-ctx", parser=integer(1), metavar="N", help_text=_CTX),
    "load_mode": _choice("auto", LoadMode, "-lm", "--load-mode", help_text=_LOAD),
    "numa": _choice("off", Numa, "--numa", help_text=_NUMA),
    "list_devices": _flag(False, "--list-devices", callback=_show_devices, help_text=_LIST),
}
"""By the names of ModelParams' fields, and one that ends the program."""


def placement_of(values: dict[str, Any]) -> dict[str, Any]:
    """Keywords for ModelParams, from the values of PLACEMENT's flags: of those that were given."""
    flags = {name: default for name, (_, default) in PLACEMENT.items() if name != "list_devices"}
    given = {name: values[name] for name, default in flags.items() if values[name] != default}
    return given | ({"fit": given["fit"] == "on"} if "fit" in given else {})


def with_placement(command: Command) -> Command:
    """Replace a command's parameter `placement` (a dict of keywords for pymtp.ModelParams) by the flags."""
    return with_flags(command, "placement", PLACEMENT, placement_of)
