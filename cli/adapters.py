"""The flags of LoRA adapters, under llama.cpp's names.

Owns names, types and help texts; whether a file fits the model, pymtp says when it loads it.
"""

from __future__ import annotations

import csv
import math
from typing import Annotated, Any

import typer

from .flags import Command, with_flags


def _files(text: str) -> list[tuple[str, float]]:
    return [(file, 1.0) for file in _items(text)]


def _scaled(text: str) -> list[tuple[str, float]]:
    pairs = [item.rpartition(":") for item in _items(text)]
    try:
        found = [(file, float(scale)) for file, _, scale in pairs]
    except ValueError:
        found = []
    if not found or not all(file and math.isfinite(scale) for file, scale in found):
        raise typer.BadParameter(f"must be FILE:SCALE,..., not {text!r}")
    return found


def _items(text: str) -> list[str]:
    """The items between commas; a name that has a comma is put in quotes."""
    items = next(csv.reader([text]), [])
    if not items or not all(items):
        raise typer.BadParameter(f"must be names of files between commas, not {text!r}")
    return items


Lora = Annotated[
    list[Any],
    typer.Option(
        "--lora", parser=_files, metavar="FILE,...", show_default=False, help="LoRA adapters, for trunk and MTP heads."
    ),
]
LoraScaled = Annotated[
    list[Any],
    typer.Option(
        "--lora-scaled",
        parser=_scaled,
        metavar="FILE:SCALE,...",
        show_default=False,
        help="LoRA adapters with scales other than 1; numbered after those of --lora.",
    ),
]

ADAPTERS: dict[str, tuple[Any, Any]] = {"lora": (Lora, []), "lora_scaled": (LoraScaled, [])}
"""Flags by the names of the commands' parameters."""


def adapters_of(values: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    """The value of ModelParams.lora, from those of these flags."""
    return tuple(one for name in ADAPTERS for group in values[name] for one in group)


def with_adapters(command: Command) -> Command:
    """Replace a command's parameter `lora` (what ModelParams.lora takes) by the flags."""
    return with_flags(command, "lora", ADAPTERS, adapters_of)
