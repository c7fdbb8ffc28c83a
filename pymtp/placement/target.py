"""The devices that a model is loaded to, and what llama.cpp's loader is told about them.

Owns connections to RPC servers, and what the loader keeps pointers to. Opens no file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from pymtp.binding.library import ffi, lib
from pymtp.errors import InvalidParameter
from pymtp.gguf.facts import GgufInfo
from pymtp.loading.params import ModelParams
from pymtp.loading.rpc import RpcLink
from pymtp.placement import devices
from pymtp.placement.places import EMBEDDING_ALONE, EXPERTS, Overrides, Place, Spot, layer_owners, places
from pymtp.placement.weights import Demand

_EMBEDDING_SHARE = 0.7
"""Of a device's free memory: what a model may take, token embedding included, for that to be put there."""
_NOT_SPLIT_BY_TENSORS = {"gemma4", "deepseek4"}
"""Architectures that llama.cpp loads with split tensors and then fails on, or drafts differently with."""


class LoadTarget:
    """The devices of a model. llama.cpp keeps pointers into it: it has to live as long as the model."""

    def __init__(self, params: ModelParams, info: GgufInfo) -> None:
        """Raises InvalidParameter for devices that do not exist or do not go together, RemoteError for RPC servers."""
        self._info = info
        self._links = [RpcLink(endpoint) for endpoint in params.rpc]
        self._remote = [device for link in self._links for device in link.devices]
        self._devices = devices.find_devices(params.device, self._remote)
        self._check(params)
        is_one = len(self._devices) > 1 and params.split_mode == "none"
        self._taking = self._devices[params.main_gpu : params.main_gpu + 1] if is_one else self._devices
        self.spots = [_spot(each, is_remote=each in self._remote) for each in self._taking]
        """The devices that take layers."""
        self._kept: list[Any] = []

    def _check(self, params: ModelParams) -> None:
        n = len(self._devices)
        if len(params.tensor_split) > max(n, 1):
            raise InvalidParameter("tensor_split", f"no more shares than there are devices: {max(n, 1)}")
        if params.main_gpu and params.main_gpu >= n:
            allowed = f"below the number of devices ({n})" if n else "left out where there is no GPU"
            raise InvalidParameter("main_gpu", allowed, value=params.main_gpu)
        if self._remote and params.split_mode not in ("layer", "none"):
            raise InvalidParameter("split_mode", "layer or none with RPC servers", value=params.split_mode)
        if params.split_mode == "tensor" and not n:
            raise InvalidParameter("split_mode", "none, layer or row where there is no GPU", value="tensor")
        if params.split_mode == "tensor" and self._info.architecture in _NOT_SPLIT_BY_TENSORS:
            allowed = f"none, layer or row for {self._info.architecture} models"
            raise InvalidParameter("split_mode", allowed, value="tensor")

    @cached_property
    def _host(self) -> Spot:
        found = devices.describe(devices.host_device())
        return Spot(found.name, found.description, None, lib.ggml_backend_cpu_buffer_type())

    def places(self, params: ModelParams, demand: Demand) -> list[Place]:
        """What goes to each device, the host last; [] where devices get parts of tensors."""
        if self.spots and params.split_mode in ("row", "tensor"):
            return []
        return places(params, self._overrides(params), demand, self.spots, self._host)

    def _overrides(self, params: ModelParams) -> Overrides:
        overrides = list(self._given(params))
        n_layers = params.n_gpu_layers
        takes_all = n_layers < 0 or n_layers > self._info.n_layer + self._info.n_heads_declared
        if params.split_mode == "tensor" or overrides or not takes_all:
            return overrides
        owners = layer_owners(params, self._info.n_layer, self._info.n_layer_all, self.spots)
        # on several devices llama.cpp computes parts of a prompt at once, unless a tensor is put elsewhere
        is_alone = len(set(owners)) == 1 and owners[0] < len(self.spots) and not self.spots[owners[0]].is_remote
        return _embedding_on(self._taking[owners[0]], self._info) if is_alone else ()

    def _given(self, params: ModelParams) -> Iterator[tuple[str, Any]]:
        types = devices.buffer_types(self._remote) if params.override_tensor else {}
        for pattern, name in params.override_tensor:
            if name not in types:
                known = "buffer types that exist (" + ", ".join(types) + ")"
                raise InvalidParameter("override_tensor", known, value=name)
            yield pattern, types[name]
        on_host = [EXPERTS] if params.cpu_moe else []
        on_host += [rf"^blk\.{layer}{EXPERTS}" for layer in range(min(params.n_cpu_moe, self._info.n_layer_all))]
        yield from ((pattern, lib.ggml_backend_cpu_buffer_type()) for pattern in on_host)

    def shares(self, params: ModelParams) -> list[float]:
        """The share of each device: by default what was free when this was made; []: the loader decides."""
        free = [spot.free_bytes for spot in self.spots]
        is_sure = params.split_mode == "layer" and len(free) > 1 and all(free)
        return [float(each or 0) for each in params.tensor_split or (free if is_sure else ())]

    def write(self, params: ModelParams, native: Any) -> None:
        """Write parameters with which the model is loaded here into a `llama_model_params`."""
        native.n_gpu_layers, native.main_gpu = params.n_gpu_layers, params.main_gpu
        native.split_mode = getattr(lib, f"LLAMA_SPLIT_MODE_{params.split_mode.upper()}")
        load_mode = {"dio": "DIRECT_IO", "mmap+mlock": "MMAP_MLOCK"}.get(params.load_mode, params.load_mode.upper())
        native.load_mode = getattr(lib, f"LLAMA_LOAD_MODE_{load_mode}")
        shares = self.shares(params)
        native.tensor_split = self._keep("float[]", shares + [0.0] * (lib.llama_max_devices() - len(shares)))
        if overrides := self._overrides(params):
            pairs = [(self._keep("char[]", pattern.encode()), buffer) for pattern, buffer in overrides]
            kind = "struct llama_model_tensor_buft_override[]"
            native.tensor_buft_overrides = self._keep(kind, [*pairs, (ffi.NULL, ffi.NULL)])
        if params.device is not None or self._remote:
            native.devices = self._keep("ggml_backend_dev_t[]", [*self._devices, ffi.NULL])

    def _keep(self, kind: str, value: Any) -> Any:
        self._kept.append(ffi.new(kind, value))
        return self._kept[-1]

    def close(self) -> None:
        """Hand RPC servers back, after the model was freed."""
        for link in self._links:
            link.close()


def _spot(device: Any, *, is_remote: bool) -> Spot:
    found = devices.describe(device)
    free_bytes = found.free_bytes if found.total_bytes else None
    copies_weights = not is_remote and found.kind in ("GPU", "IGPU")
    return Spot(found.name, found.description, free_bytes, devices.buffer_type_of(device), is_remote, copies_weights)


def _embedding_on(device: Any, info: GgufInfo) -> Overrides:
    """The token embedding, on the device: elsewhere each pass, and each draft step, waits for the CPU to look up rows.

    A tied one is there as the output matrix anyway; another has to leave room for caches.
    """
    has_room = info.ties_embedding or info.size_bytes <= _EMBEDDING_SHARE * devices.describe(device).free_bytes
    if has_room and info.embedding_type is not None and lib.pymtp_device_reads_rows(device, info.embedding_type):
        return ((EMBEDDING_ALONE, devices.buffer_type_of(device)),)
    return ()
