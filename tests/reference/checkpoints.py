"""Tiny random checkpoints in the form in which a family's are published.

The layers come from transformers' own classes, built with the heads' blocks as further layers, and are saved by it;
what makes a block a head is added. Knows no GGUF.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from random_gguf.writer import N_EMBD

from .recipes import N_LAYER, Recipe


@dataclass(frozen=True)
class Head:
    """One head: its block, and what joins token and hidden state before it."""

    blocks: list[torch.nn.Module]
    enorm: torch.nn.Module
    hnorm: torch.nn.Module
    eh_proj: torch.Tensor
    """(n_embd, 2 n_embd)."""
    norm: torch.nn.Module
    """The last one; where hidden states are several streams, what makes one of them."""
    output: torch.Tensor
    """(n_vocab, n_embd): its own, else the trunk's."""


@dataclass(frozen=True)
class Checkpoint:
    """The folder that was written, and the same weights in PyTorch."""

    folder: Path
    model: Any
    """transformers' model; its last layers are the blocks of the heads."""
    heads: list[Head]
    n_layer: int = N_LAYER
    """Of the trunk."""


def write_checkpoint(folder: Path, recipe: Recipe) -> Checkpoint:
    """Write a checkpoint of random weights, as large as those of the tests' GGUFs."""
    torch.manual_seed(1)
    n_more = recipe.n_heads * recipe.n_blocks
    given = {"num_hidden_layers": recipe.n_layer + n_more, **recipe.config}
    config = transformers.AutoConfig.for_model(
        recipe.model_type, **{key: value for key, value in given.items() if value is not None}
    )
    kind = transformers.AutoModelForImageTextToText if "vision_config" in given else transformers.AutoModelForCausalLM
    model = kind.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    if recipe.has_plain_residual:
        for block in model.get_decoder().layers[recipe.n_layer :]:
            block.attn_hc, block.ffn_hc = PlainResidual(), PlainResidual()
    randomise(model)
    model.save_pretrained(folder)
    tensors = {_published(name, recipe): tensor for name, tensor in load_file(folder / "model.safetensors").items()}

    if recipe.is_fused:
        _fuse(tensors)
    heads = [_head(model, recipe, head) for head in range(recipe.n_heads)]
    for k, head in enumerate(heads):
        own = {part: getattr(head, part) for part in ("enorm", "hnorm", "norm", "eh_proj", "output")}
        own["fc_embedding"], own["fc_hidden"] = (half.contiguous() for half in head.eh_proj.chunk(2, dim=1))
        own["embedding"] = model.get_input_embeddings()  # the trunk's, also where a head has one of its own
        for part, tensor in own.items():
            if part in recipe.names and recipe.names[part].endswith("."):
                of_module = {recipe.names[part] + name: value.clone() for name, value in tensor.state_dict().items()}
                tensors.update(of_module)
            elif part in recipe.names:
                weight = tensor.weight.detach().clone() if isinstance(tensor, torch.nn.Module) else tensor
                tensors[recipe.names[part].format(k=k, i=recipe.n_layer + k)] = weight
    for theirs, ours in recipe.spelled.items():
        tensors = {name.replace(theirs, ours): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    _write_config(folder / "config.json", recipe)
    return Checkpoint(folder, model, heads, recipe.n_layer)


class PlainResidual(torch.nn.Module):
    """In the place of a hyper-connection: equal streams stay equal, each the sum of what comes in and what is added."""

    def forward(self, streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """How much of the output each stream takes, what it takes of each stream, and the layer's input."""
        n = streams.shape[-2]
        return torch.ones(streams.shape[:-1]), torch.eye(n).expand(*streams.shape[:-2], n, n), streams[..., 0, :]


def randomise(module: torch.nn.Module) -> None:
    """Normally distributed weights; a product keeps the size of its input. What starts at 0 or 1 stays near it."""
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if not tensor.is_floating_point() or "inv_freq" in name:
                continue
            noise = torch.randn_like(tensor)
            if "embed" in name or name.endswith("compress_ape"):
                tensor.copy_(noise)
            elif tensor.dim() < 2 or "conv1d" in name:
                tensor.add_(0.1 * noise)
            else:
                tensor.copy_(noise * tensor.shape[-1] ** -0.5)


def _head(model: Any, recipe: Recipe, head: int) -> Head:
    decoder = model.get_decoder()
    first = recipe.n_layer + head * recipe.n_blocks
    norms = _norms(final_norm(decoder))
    for norm in norms:
        randomise(norm)
    output = model.lm_head.weight.detach()
    if "output" in recipe.names:
        output = torch.randn_like(output) * N_EMBD**-0.5
    return Head(
        blocks=list(decoder.layers[first : first + recipe.n_blocks]),
        enorm=norms[0],
        hnorm=norms[1],
        eh_proj=torch.randn(N_EMBD, 2 * N_EMBD) * (2 * N_EMBD) ** -0.5,
        norm=norms[2] if "norm" in recipe.names else final_norm(decoder),
        output=output,
    )


def _norms(last: Any) -> list[Any]:
    """Those of token and hidden state, and the one after the block."""
    if not hasattr(last, "hc_norm"):
        return [copy.deepcopy(last) for _ in range(3)]
    of_streams = last.hc_norm
    sizes = N_EMBD, len(of_streams.weight)
    return [*(type(of_streams)(size, eps=of_streams.eps) for size in sizes), copy.deepcopy(last)]


def final_norm(decoder: Any) -> Any:
    """The norm after the last layer, or what makes one of several streams there."""
    return getattr(decoder, norm_name(decoder))


def norm_name(decoder: Any) -> str:
    """What `decoder` calls it."""
    return next(name for name in ("norm", "norm_f", "hyper_connection_mixer") if hasattr(decoder, name))


def _published(name: str, recipe: Recipe) -> str:
    for i in range(recipe.n_heads * recipe.n_blocks):
        before, found, part = name.partition(f".layers.{recipe.n_layer + i}.")
        if found:
            part = recipe.renamed.get(part, part)
            return recipe.names["block"].format(k=i, i=recipe.n_layer + i) + part
    return name


def _fuse(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if name.endswith(".q_proj.weight")]:
        parts = [tensors.pop(name.replace(".q_proj.", f".{x}_proj.")) for x in "qkv"]
        tensors[name.replace(".q_proj.", ".qkv_proj.")] = torch.cat(parts)


def _write_config(path: Path, recipe: Recipe) -> None:
    config = json.loads(path.read_text())
    for key in ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types"):
        if isinstance(config.get(key), list):
            config[key] = config[key][: recipe.n_layer]
    config.update(
        architectures=[recipe.architecture],
        num_hidden_layers=recipe.n_layer,
        num_nextn_predict_layers=recipe.n_heads,
    )
    config.update(recipe.published)
    config = {key: value for key, value in config.items() if value is not None}
    path.write_text(json.dumps(config))
