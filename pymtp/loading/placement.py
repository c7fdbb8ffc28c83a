"""Where a model's tensors go: from the user's parameters to what llama.cpp's loader takes.

Knows devices, and patterns of tensors' names; opens no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from pymtp.binding.library import ffi, lib
from pymtp.errors import InvalidParameter
from pymtp.gguf.demand import Demand
from pymtp.gguf.facts import GgufInfo
from pymtp.loading.devices import (
    buffer_type_of,
    buffer_types,
    cpu_buffer_type,
    describe,
    find_devices,
    free_bytes,
    host_device,
    reads_rows,
)
from pymtp.loading.fit import fit, is_open
from pymtp.loading.params import ModelParams
from pymtp.loading.plan import EXPERTS, Place, Spot, layer_owners, places
from pymtp.loading.rpc import RpcLink

_SPLIT_MODES = {
    "none": lib.LLAMA_SPLIT_MODE_NONE,
    "layer": lib.LLAMA_SPLIT_MODE_LAYER,
    "row": lib.LLAMA_SPLIT_MODE_ROW,
    "tensor": lib.LLAMA_SPLIT_MODE_TENSOR,
}
_LOAD_MODES = {
    "auto": lib.LLAMA_LOAD_MODE_AUTO,
    "none": lib.LLAMA_LOAD_MODE_NONE,
    "mmap": lib.LLAMA_LOAD_MODE_MMAP,
    "mlock": lib.LLAMA_LOAD_MODE_MLOCK,
    "mmap+mlock": lib.LLAMA_LOAD_MODE_MMAP_MLOCK,
    "dio": lib.LLAMA_LOAD_MODE_DIRECT_IO,
}
_EMBEDDING_SHARE = 0.7
"""Of a device's free memory: what a model may take, token embedding included, for that to be put there."""
_NOT_SPLIT_BY_TENSORS = {"gemma4", "deepseek4"}
"""Architectures that llama.cpp loads with split tensors and then fails on, or drafts differently with."""


class Placement:
    """The parameters of the loader. llama.cpp keeps pointers into it: it has to live as long as the model."""

    def __init__(
        self,
        params: ModelParams,
        info: GgufInfo,
        demand_of: Callable[[int | None], Demand] | None = None,
        *,
        may_shrink: bool = False,
    ) -> None:
        """`demand_of`, `may_shrink`: see fit; without the first nobody asks whether what the model needs has room.

        Raises InvalidParameter for devices and buffer types that do not exist, or do not go together.
        Raises RemoteError for an RPC server that cannot be used.
        """
        self._links = [RpcLink(endpoint) for endpoint in params.rpc]
        remote = [device for link in self._links for device in link.devices]
        devices = find_devices(params.device, remote)
        if len(params.tensor_split) > max(len(devices), 1):
            raise InvalidParameter("tensor_split", f"no more shares than there are devices: {max(len(devices), 1)}")
        if params.main_gpu and params.main_gpu >= len(devices):
            allowed = f"below the number of devices ({len(devices)})" if devices else "left out where there is no GPU"
            raise InvalidParameter("main_gpu", allowed, value=params.main_gpu)
        if remote and params.split_mode not in ("layer", "none"):
            raise InvalidParameter("split_mode", "layer or none with RPC servers", value=params.split_mode)
        if params.split_mode == "tensor" and not devices:
            raise InvalidParameter("split_mode", "none, layer or row where there is no GPU", value="tensor")
        if params.split_mode == "tensor" and info.architecture in _NOT_SPLIT_BY_TENSORS:
            raise InvalidParameter("split_mode", f"none, layer or row for {info.architecture} models", value="tensor")
        if len(devices) > 1 and params.split_mode == "none":
            taking = devices[params.main_gpu : params.main_gpu + 1]
        else:
            taking = devices
        self._info, self._remote, self._taking = info, remote, taking
        self._demand_of = demand_of
        self.params = params
        """What was asked for, or what has room in its place."""
        self.n_ctx: int | None = None
        """Tokens of context of each sequence that have room, where that is fewer than the default."""
        self._spots = [_spot(each, is_remote=each in remote) for each in taking]
        if demand_of and taking and is_open(params):
            found = fit(params, demand_of, self._spots, self._places, may_shrink=may_shrink)
            self.params = params = found.params
            self.n_ctx = found.n_ctx
        overrides = self._overrides_of(params)
        self._split_mode, self._load_mode = _SPLIT_MODES[params.split_mode], _LOAD_MODES[params.load_mode]
        self._n_gpu_layers, self._main_gpu = params.n_gpu_layers, params.main_gpu
        self._devices = (
            None if params.device is None and not remote else ffi.new("ggml_backend_dev_t[]", [*devices, ffi.NULL])
        )
        self._patterns = [ffi.new("char[]", pattern.encode()) for pattern, _ in overrides]
        self._overrides = ffi.new("struct llama_model_tensor_buft_override[]", len(overrides) + 1)
        for i, (_, buffer_type) in enumerate(overrides):
            self._overrides[i].pattern, self._overrides[i].buft = self._patterns[i], buffer_type
        shares = [float(share) for share in params.tensor_split or self._free_shares()]
        self._tensor_split = ffi.new("float[]", shares + [0.0] * (lib.llama_max_devices() - len(shares)))

    def _overrides_of(self, params: ModelParams) -> list[tuple[str, Any]]:
        """Patterns, and the buffer types that matching tensors go to; the first that matches counts."""
        overrides = list(_overrides(params, self._info.n_layer_all, self._remote))
        if params.split_mode != "tensor" and _takes_all_layers(params, self._info) and not overrides:
            owners = layer_owners(params, self._info.n_layer, self._info.n_layer_all, self._spots)
            of_output = owners[-1]
            # on several devices llama.cpp computes parts of a prompt at once, unless a tensor is put elsewhere
            is_alone = len(set(owners)) == 1 and of_output < len(self._spots)
            if is_alone and not self._spots[of_output].is_remote:
                overrides = list(_embedding_on(self._taking[of_output], self._info))
        return overrides

    @cached_property
    def _host(self) -> Spot:
        found = describe(host_device())
        return Spot(found.name, found.description, None, cpu_buffer_type())

    def _places(self, params: ModelParams, demand: Demand) -> list[Place]:
        return places(params, self._overrides_of(params), demand, self._spots, self._host)

    def _free_shares(self) -> list[int]:
        """Of layers: what was free when the plan was made; the loader would ask again. []: it does."""
        free = [spot.free_bytes for spot in self._spots]
        is_sure = self.params.split_mode == "layer" and len(free) > 1 and all(free)
        return [each for each in free if each] if is_sure else []

    @property
    def places(self) -> list[Place]:
        """What goes to each device, the host last; [] where devices get parts of tensors."""
        assert self._demand_of
        if self._taking and self.params.split_mode in ("row", "tensor"):
            return []
        return self._places(self.params, self._demand_of(self.n_ctx))

    def write(self, native: Any) -> None:
        """Write it into a `llama_model_params`."""
        native.n_gpu_layers, native.main_gpu = self._n_gpu_layers, self._main_gpu
        native.split_mode, native.load_mode = self._split_mode, self._load_mode
        native.tensor_split = self._tensor_split
        native.tensor_buft_overrides = self._overrides if self._patterns else ffi.NULL
        if self._devices is not None:
            native.devices = self._devices

    def close(self) -> None:
        """Hand RPC servers back, after the model was freed."""
        for link in self._links:
            link.close()


def _spot(device: Any, *, is_remote: bool) -> Spot:
    found = describe(device)
    return Spot(
        found.name,
        found.description,
        found.free_bytes if found.total_bytes else None,
        buffer_type_of(device),
        is_remote=is_remote,
        copies_weights=not is_remote and found.kind in ("GPU", "IGPU"),
    )


def _overrides(params: ModelParams, n_layer_all: int, remote: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Patterns, and the buffer types that matching tensors go to; the first that matches counts."""
    types = buffer_types(remote) if params.override_tensor else {}
    for pattern, name in params.override_tensor:
        if name not in types:
            known = "buffer types that exist (" + ", ".join(types) + ")"
            raise InvalidParameter("override_tensor", known, value=name)
        yield pattern, types[name]
    if params.cpu_moe:
        yield EXPERTS, cpu_buffer_type()
    for layer in range(min(params.n_cpu_moe, n_layer_all)):
        yield rf"^blk\.{layer}{EXPERTS}", cpu_buffer_type()


def _takes_all_layers(params: ModelParams, info: GgufInfo) -> bool:
    n_layers = params.n_gpu_layers
    return n_layers < 0 or n_layers > info.n_layer + info.n_heads_declared


def _embedding_on(device: Any, info: GgufInfo) -> Sequence[tuple[str, Any]]:
    """The token embedding, on the device: elsewhere each pass, and each draft step, waits for the CPU to look up rows.

    A tied one is there as the output matrix anyway; another has to leave room for caches.
    """
    has_room = info.ties_embedding or info.size_bytes <= _EMBEDDING_SHARE * free_bytes(device)
    if info.embedding_type is None or not has_room or not reads_rows(device, info.embedding_type):
        return ()
    return ((r"^token_embd\.weight$", buffer_type_of(device)),)
