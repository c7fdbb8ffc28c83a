"""The user's parameters for loading a model's weights, checked."""

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pymtp.errors import InvalidParameter, require
from pymtp.text.files import StrPath

ADAPTER_SCALE_MAX = 100.0
"""The greatest scale of a LoRA adapter: far above what is useful, and far below what makes values infinite."""

IMAGE_ROWS_MAX = 1 << 16
"""The most rows of embeddings that an image may get."""

SplitMode = Literal["none", "layer", "row", "tensor"]
Numa = Literal["off", "distribute", "isolate", "numactl"]
LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]


@dataclass(frozen=True)
class ModelParams:
    """How the weights of a model are loaded, and where they go. Names and meanings are those of llama.cpp."""

    n_gpu_layers: int = -1
    """Layers on the GPUs, if there are any, counted from the last one; -1: as many as fit, -2: all."""
    device: Sequence[str] | None = None
    """Names of the devices that take layers, see pymtp.devices(); (): the CPU alone; None: all GPUs."""
    rpc: Sequence[str] = ()
    """RPC servers, host:port, whose devices take layers too; they come before the GPUs of this machine."""
    split_mode: SplitMode = "layer"
    """Among several devices: one takes all (none), each some layers (layer) or tensor parts (row, tensor)."""
    tensor_split: Sequence[float] = ()
    """The share of each device, in any unit; (): by their free memory."""
    main_gpu: int = 0
    """With `split_mode` none: the device that takes all, from 0."""
    override_tensor: Sequence[tuple[str, str]] = ()
    """Regular expressions for tensor names, each with the buffer type these go to; the first match wins."""
    cpu_moe: bool = False
    """All experts stay on the CPU, those of the MTP heads too."""
    n_cpu_moe: int = 0
    """How many first layers keep their experts on the CPU; the heads are the last layers."""
    fit: bool = True
    """Unless something above says what goes where: what does not fit the devices stays on the CPU."""
    fit_target: Sequence[int] = (1024,)
    """MiB that stay free on each device; the last applies to all further devices."""
    fit_ctx: int = 4096
    """If `n_ctx` is not given either: how far the context may shrink for more layers to fit."""
    load_mode: LoadMode = "auto"
    """How the file is read: mapped into memory, locked there, or past the cache of the system (dio)."""
    override_kv: Sequence[tuple[str, int | float | bool | str]] = ()
    """Keys of the metadata, and values in place of the file's, of the same types; for the heads too."""
    lora: Sequence[StrPath | tuple[StrPath, float]] = ()
    """LoRA adapters (GGUF files), each with a scale (default 1); applied to trunk and heads. See Model.adapters."""
    mmproj: StrPath | None = None
    """The projector of a model that takes images, a GGUF file."""
    image_min_tokens: int | None = None
    """Minimum rows of an image, where the projector takes images of any size; None: as the projector's file says."""
    image_max_tokens: int | None = None
    """The most rows of an image; None: as the projector's file says."""
    numa: Numa = "off"
    """How threads are spread over NUMA nodes: over all of them, on the one where the program began, or as numactl says.
    It holds for the whole process once a model asks for it."""
    chat_template: str | None = None
    """Jinja in place of the model's own chat template; "chatml": llama.cpp's."""

    def __post_init__(self) -> None:
        for name, least, allowed in (
            ("n_gpu_layers", -2, "a number of layers, -1 for as many as have room, -2 for all"),
            ("main_gpu", 0, "the number of a device, from 0"),
            ("n_cpu_moe", 0, "a number of layers, 0 or more"),
            ("fit_ctx", 1, "a number of tokens, 1 or more"),
        ):
            require(_is_integer(getattr(self, name), least), name, allowed, getattr(self, name))
        is_room = self.fit_target and _all(self.fit_target, lambda mib: _is_integer(mib, 0, 1 << 40))
        require(is_room, "fit_target", "numbers of MiB, 0 or more", self.fit_target)
        for name, choices in {"split_mode": SplitMode, "numa": Numa, "load_mode": LoadMode}.items():
            words = get_args(choices)
            require(getattr(self, name) in words, name, "one of " + ", ".join(words), getattr(self, name))
        for name in ("cpu_moe", "fit"):
            require(isinstance(getattr(self, name), bool), name, "True or False", getattr(self, name))
        require(isinstance(self.mmproj, (str, os.PathLike, type(None))), "mmproj", "a GGUF file", self.mmproj)
        for name in ("image_min_tokens", "image_max_tokens"):
            rows = getattr(self, name)
            if rows is not None:
                require(self.mmproj is not None, name, "left out without a projector (mmproj, --mmproj)", rows)
                allowed = f"a number of rows from 1 to {IMAGE_ROWS_MAX}"
                require(_is_integer(rows, 1, IMAGE_ROWS_MAX), name, allowed, rows)
        if self.image_min_tokens and self.image_max_tokens and self.image_min_tokens > self.image_max_tokens:
            raise InvalidParameter("image_min_tokens", f"at most image_max_tokens ({self.image_max_tokens})")
        allowed = "a list of files, or of pairs of a file and a scale (-100 to 100)"
        require(_all(self.lora, _is_adapter), "lora", allowed, self.lora)
        has_both = self.lora and self.split_mode == "tensor"
        require(not has_both, "lora", "left out with split_mode tensor: llama.cpp cannot split adapters")
        is_text = isinstance(self.chat_template, (str, type(None)))
        require(is_text, "chat_template", "a string of Jinja", self.chat_template)
        are_names = self.device is None or _all(self.device, lambda name: isinstance(name, str))
        require(are_names, "device", "a list of names, or None for all GPUs", self.device)
        are_servers = _all(self.rpc, _is_endpoint) and len(set(self.rpc)) == len(self.rpc)
        require(are_servers, "rpc", "a list of different servers, each host:port", self.rpc)
        are_shares = _all(self.tensor_split, _is_share) and (not self.tensor_split or sum(self.tensor_split) > 0)
        require(are_shares, "tensor_split", "shares of 0 or more, not all 0", self.tensor_split)
        allowed = "pairs of a key and a number, True, False or a string, of at most 127 bytes each"
        require(_all(self.override_kv, _is_metadata), "override_kv", allowed, self.override_kv)
        allowed = "pairs of a regular expression and a buffer type"
        require(_all(self.override_tensor, _is_override), "override_tensor", allowed, self.override_tensor)

    @property
    def adapters(self) -> list[tuple[StrPath, float]]:
        """The adapters with their scales."""
        return [(one, 1.0) if isinstance(one, (str, os.PathLike)) else (one[0], float(one[1])) for one in self.lora]


def _is_integer(value: object, least: int, most: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _all(values: Any, is_right: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and all(map(is_right, values))


def _is_endpoint(value: object) -> bool:
    match = re.fullmatch(r"[^\s:]+:(\d{1,5})", value) if isinstance(value, str) else None
    return match is not None and 0 < int(match[1]) < 1 << 16


def _is_metadata(value: object) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not isinstance(value[0], str):
        return False
    key, given = value
    fits = isinstance(given, float) or (isinstance(given, int) and -(2**63) <= given < 2**63)
    return 0 < len(key.encode()) < 128 and (fits or (isinstance(given, str) and len(given.encode()) < 128))


def _is_adapter(value: object) -> bool:
    path, scale = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value, 1.0)
    is_number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
    return isinstance(path, (str, os.PathLike)) and is_number and abs(scale) <= ADAPTER_SCALE_MAX


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_override(value: object) -> bool:
    if not (isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(each, str) for each in value)):
        return False
    try:
        re.compile(value[0])
    except re.error:
        return False
    return bool(value[0])
