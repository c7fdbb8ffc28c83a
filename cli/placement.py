"""The flags that say where a model's tensors go, under llama.cpp's names.

Owns names, types and help texts; what there is to go to, pymtp checks when it loads the model.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from .flags import Command, with_flags
from .parsers import choice, integer

SplitModes = Literal["none", "layer", "row", "tensor"]
NumaModes = Literal["off", "distribute", "isolate", "numactl"]
LoadModes = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise typer.BadParameter("must be none, or names of devices; see --list-devices")
    return [] if names == ["none"] else names


def _shares(text: str) -> list[float]:
    try:
        return [float(share) for share in text.replace("/", ",").split(",")]
    except ValueError:
        raise typer.BadParameter(f"must be shares such as 3,1, not {text!r}") from None


def _overrides(text: str) -> list[tuple[str, str]]:
    pairs = [pair.rpartition("=") for pair in text.split(",")]
    if not all(pattern and buffer_type for pattern, _, buffer_type in pairs):
        raise typer.BadParameter(f"must be PATTERN=BUFFER,..., not {text!r}")
    return [(pattern, buffer_type) for pattern, _, buffer_type in pairs]


def _sizes(text: str) -> list[int]:
    return [integer(0)(part) for part in text.replace("/", ",").split(",")]


def _servers(text: str) -> list[str]:
    return [server.strip() for server in text.split(",") if server.strip()]


def _show_devices(ctx: typer.Context, wanted: bool) -> bool:
    if wanted:
        from pymtp.loading.devices import devices

        typer.echo("Available devices:")
        for device in devices(ctx.params.get("rpc") or ()):
            memory = f"{device.total_bytes >> 20} MiB, {device.free_bytes >> 20} MiB free"
            typer.echo(f"  {device.name}: {device.description} ({device.kind}, {memory})")
        raise typer.Exit
    return wanted


ListDevices = Annotated[
    bool,
    # not eager: it comes after --rpc, wherever that stands
    typer.Option("--list-devices", callback=_show_devices, help="List the devices there are, and exit."),
]
Devices = Annotated[
    Any,
    typer.Option(
        "-dev",
        "--device",
        parser=_names,
        metavar="NAME,...",
        help="Devices that take layers; none: the CPU alone.  [default: all GPUs]",
    ),
]
Rpc = Annotated[
    Any,
    typer.Option(
        "--rpc",
        parser=_servers,
        metavar="HOST:PORT,...",
        is_eager=True,  # --list-devices shows its devices too
        help="Servers (pymtp rpc-server) on a private network, whose devices take layers too.",
    ),
]
SplitMode = Annotated[
    SplitModes,
    choice(
        SplitModes,
        "-sm",
        "--split-mode",
        help_text="Among several devices: one takes all (none), each takes layers, or each a part of every tensor.",
    ),
]
TensorSplit = Annotated[
    Any,
    typer.Option(
        "-ts",
        "--tensor-split",
        parser=_shares,
        metavar="N,...",
        help="The share of each device, such as 3,1.  [default: by free memory]",
    ),
]
MainGpu = Annotated[
    int,
    typer.Option(
        "-mg", "--main-gpu", parser=integer(0), metavar="I", help="With -sm none: which device, counted from 0."
    ),
]
OverrideTensor = Annotated[
    Any,
    typer.Option(
        "-ot",
        "--override-tensor",
        parser=_overrides,
        metavar="PATTERN=BUFFER,...",
        help="Put tensors whose names match PATTERN into a buffer type, such as CPU; the first match counts.",
    ),
]
CpuMoe = Annotated[
    bool, typer.Option("-cmoe", "--cpu-moe", help="Keep all experts on the CPU, those of the MTP heads too.")
]
NCpuMoe = Annotated[
    int,
    typer.Option(
        "-ncmoe",
        "--n-cpu-moe",
        parser=integer(0),
        metavar="N",
        help="Keep the experts of the first N layers on the CPU.",
    ),
]
Fit = Annotated[
    Literal["on", "off"],
    choice(
        Literal["on", "off"],
        *("-fit", "--fit"),
        help_text="Keep on the CPU what has no room on the devices, where no other flag says what goes where.",
    ),
]
FitTarget = Annotated[
    Any,
    typer.Option(
        "-fitt",
        "--fit-target",
        parser=_sizes,
        metavar="MIB,...",
        help="MiB that --fit leaves free on each device; the last one counts for all further ones.  [default: 1024]",
    ),
]
FitCtx = Annotated[
    int,
    typer.Option(
        "-fitc",
        "--fit-ctx",
        parser=integer(1),
        metavar="N",
        help="The smallest context that --fit may choose, where -c is not given.",
    ),
]
LoadMode = Annotated[
    LoadModes,
    choice(LoadModes, "-lm", "--load-mode", help_text="How the file is read; auto: mapped, where devices allow it."),
]

NumaMode = Annotated[
    NumaModes,
    choice(NumaModes, "--numa", help_text="Spread threads over the nodes of a machine with several memories."),
]

PLACEMENT: dict[str, tuple[Any, Any]] = {
    "device": (Devices, None),
    "rpc": (Rpc, None),
    "split_mode": (SplitMode, "layer"),
    "tensor_split": (TensorSplit, None),
    "main_gpu": (MainGpu, 0),
    "override_tensor": (OverrideTensor, None),
    "cpu_moe": (CpuMoe, False),
    "n_cpu_moe": (NCpuMoe, 0),
    "fit": (Fit, "on"),
    "fit_target": (FitTarget, None),
    "fit_ctx": (FitCtx, 4096),
    "load_mode": (LoadMode, "auto"),
    "numa": (NumaMode, "off"),
    "list_devices": (ListDevices, False),
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
