"""Loads weights from files: the model's, and those of an assistant that drafts for it.

A model is freed with the last who holds its handle. Never makes a context.
"""

import os
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pymtp.binding import log
from pymtp.binding.library import error_message, ffi, lib, model_pointer, text_of
from pymtp.errors import ModelError, PymtpError, RemoteError, require
from pymtp.gguf.facts import GgufInfo
from pymtp.gguf.weights import check_tables
from pymtp.loading.adapters import LoraAdapter, adapt_heads, check_adapters, load_adapters
from pymtp.loading.params import ModelParams, Numa
from pymtp.placement.target import LoadTarget

OnLoad = Callable[[float], object]
"""Called while the weights are read, with the share that is loaded, 0 to 1; an exception from it ends the loading."""


class Weights:
    """A loaded model, and the assistant that drafts for it, if it has one."""

    def __init__(
        self,
        info: GgufInfo,
        params: ModelParams,
        on_load: OnLoad | None = None,
        *,
        with_heads: bool,
        target: LoadTarget | None = None,
        planned: ModelParams | None = None,
    ) -> None:
        """`target`: the devices of `params`, if they are open already; `planned`: what has room in its place."""
        self.info = info
        check_tables(info)
        _use_numa(params.numa)
        adapters = check_adapters(info, params)
        needs_heads = adapt_heads(info, adapters)
        target = target or LoadTarget(params, info)
        self.model: object | None = None
        """llama.cpp's handle."""
        self.assistant: object | None = None
        try:
            self.model = _load(info, target, planned or params, on_load, load_mtp=with_heads or needs_heads)
            self.goes_back: bool = lib.pymtp_model_goes_back(model_pointer(self.model))
            """Whether rounds can go back over rejected drafts: llama.cpp has no snapshots of some recurrent states."""
            self.adapters: tuple[LoraAdapter, ...] = load_adapters(self.model, params, adapters)
            if with_heads and info.has_assistant and info.draft_file:
                assistant, here = GgufInfo(info.draft_file), params
                if params.rpc:  # an assistant goes where heads go: not to another machine
                    here = replace(params, rpc=(), device=(), tensor_split=(), override_tensor=())
                self.assistant = _load(assistant, LoadTarget(here, assistant), here, None, load_mtp=True)
        except BaseException:
            self.close()
            target.close()
            raise

    @property
    def draft_obstacle(self) -> str | None:
        """Why llama.cpp cannot run the MTP heads, or the assistant; None if it can."""
        obstacle = lib.pymtp_draft_obstacle(model_pointer(self.model), model_pointer(self.assistant))
        return text_of(obstacle) if obstacle else None

    @property
    def has_recurrent_states(self) -> bool:
        """Whether a sequence has states that drafts can only be taken back from by copies."""
        return bool(lib.llama_model_is_hybrid(self.model) or lib.llama_model_is_recurrent(self.model))

    def close(self) -> None:
        """Let go of the weights, which are freed once nobody uses them; closing twice is harmless."""
        self.model = self.assistant = None


def _load(info: GgufInfo, target: LoadTarget, params: ModelParams, on_load: OnLoad | None, *, load_mtp: bool) -> object:
    native = lib.llama_model_default_params()
    kept = _write(native, params, target)
    native.load_mtp = load_mtp

    def free(model: Any, _kept: object = kept) -> None:
        lib.llama_model_free(model)
        target.close()

    return ffi.gc(load_native(info, native, on_load), free)


def _write(native: Any, params: ModelParams, target: LoadTarget) -> list[object]:
    """Write parameters into a `llama_model_params`. Returns what has to live as long as the model."""
    kept: list[object] = []

    def keep(kind: str, value: object) -> Any:
        kept.append(ffi.new(kind, value))
        return kept[-1]

    native.n_gpu_layers, native.main_gpu = params.n_gpu_layers, params.main_gpu
    native.split_mode = getattr(lib, f"LLAMA_SPLIT_MODE_{params.split_mode.upper()}")
    load_mode = {"dio": "DIRECT_IO", "mmap+mlock": "MMAP_MLOCK"}.get(params.load_mode, params.load_mode.upper())
    native.load_mode = getattr(lib, f"LLAMA_LOAD_MODE_{load_mode}")
    shares = target.shares(params)
    native.tensor_split = keep("float[]", shares + [0.0] * (lib.llama_max_devices() - len(shares)))
    if overrides := target.overrides(params):
        pairs = [(keep("char[]", pattern.encode()), buffer) for pattern, buffer in overrides]
        kind = "struct llama_model_tensor_buft_override[]"
        native.tensor_buft_overrides = keep(kind, [*pairs, (ffi.NULL, ffi.NULL)])
    if params.override_kv:
        overridden: list[dict[str, Any]] = []
        for key, value in dict(params.override_kv).items():
            kind, field = next(found for of, *found in _OVERRIDES if isinstance(value, of))
            tag = getattr(lib, f"LLAMA_KV_OVERRIDE_TYPE_{kind}")
            given = value.encode() if isinstance(value, str) else value
            overridden.append({"tag": tag, "key": key.encode(), field: given})
        native.kv_overrides = keep("struct llama_model_kv_override[]", [*overridden, {}])
    if params.device is not None or params.rpc:
        native.devices = keep("ggml_backend_dev_t[]", [*target.devices, ffi.NULL])
    return kept


_OVERRIDES: tuple[tuple[type, str, str], ...] = (
    *((bool, "BOOL", "val_bool"), (int, "INT", "val_i64")),  # a bool is an int as well
    *((float, "FLOAT", "val_f64"), (str, "STR", "val_str")),
)


def load_native(info: GgufInfo, params: Any, on_load: OnLoad | None = None) -> object:
    """llama.cpp's handle of a model, for its own parameters. Raises ModelError, and what `on_load` raises."""
    errors: list[BaseException] = []

    def report(share: float) -> bool:
        """Pass llama.cpp's progress on; return whether to continue."""
        try:
            if on_load:
                on_load(share)
        except BaseException as error:
            errors.append(error)
        return not errors

    handle = ffi.new_handle(report)  # also without `on_load`: only there can Ctrl-C be noticed
    params.progress_callback = lib.pymtp_on_progress
    params.progress_callback_user_data = handle
    lib.llama_backend_init()
    log.take_recent()
    is_one_file = info.draft_model is None or info.has_assistant
    paths = [ffi.new("char[]", os.fsencode(path)) for path in ([info.path] if is_one_file else info.files)]
    model = ffi.new("struct llama_model **")
    lib.pymtp_model_load(len(paths), paths, ffi.addressof(params), model)
    loaded = model[0]
    if errors:
        if loaded:
            lib.llama_model_free(loaded)
        raise errors[0]
    if not loaded:
        raise load_failure(info, f"{log.take_recent()}\nerror: {error_message()}")
    return loaded


@ffi.def_extern()  # type: ignore[untyped-decorator]
def pymtp_on_progress(share: float, report: Any) -> bool:
    """Called by llama.cpp."""
    return bool(ffi.from_handle(report)(share))


def load_failure(info: GgufInfo, loader_log: str) -> PymtpError:
    """The error, in one line, for a file that llama.cpp rejects although `model_facts` found no problem."""
    if lost := re.search("RPC server .*", loader_log):
        return RemoteError(lost[0])
    if "unknown model architecture" in loader_log:
        what = f"the pinned llama.cpp does not know the architecture {info.architecture!r}"
        return ModelError(f"{info.path}: {what}; use a newer pymtp or another model")
    reasons = [line for line in loader_log.splitlines() if "error" in line.lower()]
    reason = reasons[0].strip() if reasons else "it gave no reason"
    return ModelError(f"{info.path}: llama.cpp cannot load this {info.architecture} model ({reason}); see --verbose")


_numa_lock = threading.Lock()
_numa: list[Numa] = []  # what the process uses; it can have one


def _use_numa(strategy: Numa) -> None:
    """Spread the threads of the process like this from now on. Raises InvalidParameter if it has another way."""
    if strategy == "off":
        return
    with _numa_lock:
        if not _numa:
            lib.llama_numa_init(getattr(lib, f"GGML_NUMA_STRATEGY_{strategy.upper()}"))
            _numa.append(strategy)
    require(strategy in _numa, "numa", f"{_numa[0]}, as for the first model of the process", strategy)
