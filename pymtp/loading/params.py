"""The user's parameters for loading a model's weights, checked."""

from __future__ import annotations

from dataclasses import dataclass

from pymtp.errors import InvalidParameter


@dataclass(frozen=True)
class ModelParams:
    """How the weights of a model are loaded. Names and meanings are those of llama.cpp."""

    n_gpu_layers: int = -1
    """Layers on the GPU, if there is one; -1: all."""

    def __post_init__(self) -> None:
        if not isinstance(self.n_gpu_layers, int) or isinstance(self.n_gpu_layers, bool):
            raise InvalidParameter("n_gpu_layers", "an integer, -1 for all layers", value=self.n_gpu_layers)
