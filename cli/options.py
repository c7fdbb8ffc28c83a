"""What the flags of a model ask for, as keywords of pymtp.Model."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import typer

from .flags import Values


def given_for(params: type[Any], flags: Values) -> dict[str, Any]:
    """The fields of `params` that the flags have a value for; None: what `params` has by default."""
    values = vars(flags)
    return {one.name: values[one.name] for one in fields(params) if values.get(one.name) is not None}


def placement_of(flags: Values) -> dict[str, Any]:
    """Keywords for ModelParams, but for layers and chat templates."""
    from pymtp import ModelParams

    given = given_for(ModelParams, flags)
    others = {name: value for name, value in given.items() if name not in ("n_gpu_layers", "chat_template", "lora")}
    lora = [one for name in ("lora", "lora_scaled") for group in vars(flags).get(name, ()) for one in group]
    return {**others, "fit": flags.fit == "on", "lora": tuple(lora)}


def model_options_of(flags: Values) -> dict[str, Any]:
    """Keywords for Model."""
    from pymtp import ContextParams, DraftParams

    if flags.draft in ("mtp", "lookup") and flags.draft_max == 0:
        raise typer.BadParameter(f"--draft {flags.draft} and --draft-max 0 contradict each other: leave one out")
    return {
        **placement_of(flags),
        "n_gpu_layers": flags.n_gpu_layers,
        "n_ctx": None,
        "draft_model": None,
        **given_for(ContextParams, flags),
        **given_for(DraftParams, flags),
        "draft": flags.draft if flags.draft_max else "none",
    }
