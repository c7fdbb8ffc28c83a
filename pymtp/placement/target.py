"""The devices that a model is loaded to, and which tensors go where on them.

Owns connections to RPC servers. Opens no file.
"""

from typing import Any

from pymtp.binding.library import lib
from pymtp.errors import require
from pymtp.gguf.facts import GgufInfo
from pymtp.loading.params import ModelParams
from pymtp.placement import devices
from pymtp.placement.demand import Demand
from pymtp.placement.places import EMBEDDING_ALONE, EXPERTS, Overrides, Place, Spot, layer_owners, places

_EMBEDDING_SHARE = 0.7
"""Of a device's free memory: what a model may take, token embedding included, for that to be put there."""
_UNSPLIT = {"gemma4", "deepseek4"}
"""Architectures that llama.cpp loads with split tensors and then fails on, or drafts differently with."""


class LoadTarget:
    """The devices of a model. Those of RPC servers live as long as it does."""

    def __init__(self, params: ModelParams, info: GgufInfo) -> None:
        """Raises InvalidParameter for devices that do not exist or do not go together, RemoteError for RPC servers."""
        self._info = info
        self._links = [devices.RpcLink(endpoint) for endpoint in params.rpc]
        self._remote = [device for link in self._links for device in link.devices]
        self.devices = devices.find_devices(params.device, self._remote)
        """llama.cpp's handles."""
        self._check(params)
        is_one = len(self.devices) > 1 and params.split_mode == "none"
        self._taking = self.devices[params.main_gpu : params.main_gpu + 1] if is_one else self.devices
        self.spots = [_spot(each, is_remote=each in self._remote) for each in self._taking]
        """The devices that take layers."""
        found = devices.describe(devices.host_device())
        self._host = Spot(found.name, found.description, None, lib.ggml_backend_cpu_buffer_type())
        self.descriptions = *(spot.description for spot in self.spots), self._host.description
        """What computes: the devices that take layers, and the host."""

    def _check(self, params: ModelParams) -> None:
        n, mode, architecture = len(self.devices), params.split_mode, self._info.architecture
        most, by_layers = max(n, 1), "none, layer or row"
        numbers = f"below the number of devices ({n})" if n else "left out where there is no GPU"
        for name, is_wrong, allowed in (
            ("tensor_split", len(params.tensor_split) > most, f"no more shares than there are devices: {most}"),
            ("main_gpu", 0 < params.main_gpu >= n, numbers),
            ("split_mode", self._remote and mode not in ("layer", "none"), "layer or none with RPC servers"),
            ("split_mode", mode == "tensor" and not n, f"{by_layers} where there is no GPU"),
            ("split_mode", mode == "tensor" and architecture in _UNSPLIT, f"{by_layers} for {architecture} models"),
        ):
            require(not is_wrong, name, allowed, getattr(params, name))

    def places(self, params: ModelParams, demand: Demand) -> list[Place]:
        """What goes to each device, the host last; [] where devices get parts of tensors."""
        if self.spots and params.split_mode in ("row", "tensor"):
            return []
        return places(params, self.overrides(params), demand, self.spots, self._host)

    def overrides(self, params: ModelParams) -> Overrides:
        """Patterns of tensors' names, and the buffer types that these go to."""
        overrides: list[tuple[str, Any]] = []
        types = devices.buffer_types(self._remote) if params.override_tensor else {}
        for pattern, name in params.override_tensor:
            require(name in types, "override_tensor", f"buffer types that exist ({', '.join(types)})", name)
            overrides.append((pattern, types[name]))
        on_host = [EXPERTS] if params.cpu_moe else []
        on_host += [rf"^blk\.{layer}{EXPERTS}" for layer in range(min(params.n_cpu_moe, self._info.n_layer_all))]
        overrides += [(pattern, lib.ggml_backend_cpu_buffer_type()) for pattern in on_host]
        n_layers = params.n_gpu_layers
        takes_all = n_layers < 0 or n_layers > self._info.n_layer_all
        if params.split_mode == "tensor" or overrides or not takes_all:
            return overrides
        owners = layer_owners(params, self._info.n_layer, self._info.n_layer_all, self.spots)
        # on several devices llama.cpp computes parts of a prompt at once, unless a tensor is put elsewhere
        is_alone = len(set(owners)) == 1 and owners[0] < len(self.spots) and not self.spots[owners[0]].is_remote
        return _embedding_on(self._taking[owners[0]], self._info) if is_alone else ()

    def shares(self, params: ModelParams) -> list[float]:
        """The share of each device: by default what was free when this was made; []: llama.cpp decides."""
        is_sure = params.split_mode == "layer" and len(self.spots) > 1 and all(spot.free_bytes for spot in self.spots)
        return [*params.tensor_split] or [spot.share for spot in self.spots if is_sure]

    def close(self) -> None:
        """Hand RPC servers back, after the model was freed."""
        for link in self._links:
            link.close()


def _spot(device: Any, *, is_remote: bool) -> Spot:
    found, buffer = devices.describe(device), devices.buffer_type_of(device)
    free_bytes = found.free_bytes if found.total_bytes else None
    copies_weights = not is_remote and found.kind in ("GPU", "IGPU")
    return Spot(found.name, found.description, free_bytes, buffer, is_remote, copies_weights)


def _embedding_on(device: Any, info: GgufInfo) -> Overrides:
    """The token embedding, on the device: elsewhere each pass, and each draft step, waits for the CPU to look up rows.

    A tied one is there as the output matrix anyway; another has to leave room for caches.
    """
    has_room = info.ties_embedding or info.size_bytes <= _EMBEDDING_SHARE * devices.describe(device).free_bytes
    if has_room and info.embedding_type is not None and lib.pymtp_device_reads_rows(device, info.embedding_type):
        return ((EMBEDDING_ALONE, devices.buffer_type_of(device)),)
    return ()
