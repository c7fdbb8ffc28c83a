"""pymtp: GGUF models that draft with their own MTP heads.

    import pymtp

    with pymtp.Model() as model:  # the embedded model; Model("model.gguf") for a file
        for piece in model.generate("Once upon a time", max_tokens=100, temperature=0.7):
            print(piece, end="", flush=True)

Model, its ModelSlots and ModelAdapters, and what it returns: Generation, Batch, Conversation, Answer, Stats.
Chats: ChatParams, ChatPrompt, ChatTemplate, and what answers are taken apart into: ChatParser, ChatMessage, ChatDelta.
Parameters: ModelParams, ContextParams, DraftParams, GenerationParams, SamplingParams.
Errors: PymtpError and those derived from it.
Drafters of your own: Drafter, DrafterTraits, DraftRequest, DraftOutcome, Proposal.
The layer below: Session, Chunk.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pymtp.binding.log import exit_on_abort, set_log_level
    from pymtp.chat.params import ChatParams
    from pymtp.chat.parser import ChatDelta, ChatMessage, ChatParser, ToolCall, ToolCallDelta
    from pymtp.chat.prompt import ChatPrompt
    from pymtp.chat.template import ChatTemplate
    from pymtp.conversation import Answer, Conversation
    from pymtp.drafting.interface import Drafter, DrafterTraits, DraftOutcome, DraftRequest, Proposal
    from pymtp.drafting.params import DraftParams, PlainReason
    from pymtp.engine.context import ContextParams
    from pymtp.engine.session import Chunk, Session, n_contexts
    from pymtp.errors import (
        BackendError,
        Closed,
        ContextFull,
        InvalidParameter,
        LibraryError,
        ModelError,
        NotFinite,
        PymtpError,
        RemoteError,
        StateError,
        UnsupportedModel,
    )
    from pymtp.loading.adapters import LoraAdapter
    from pymtp.loading.images import IMAGE_MARKER, Image
    from pymtp.loading.params import ModelParams
    from pymtp.model import Model
    from pymtp.placement.devices import Device, devices
    from pymtp.sampling.params import SamplingParams
    from pymtp.serving.batch import Batch
    from pymtp.serving.controls import ModelAdapters, ModelSlots
    from pymtp.serving.generation import Generation
    from pymtp.serving.params import GenerationParams
    from pymtp.serving.statistics import Stats
    from pymtp.version import __version__, version_text

# Imported on first use: a help text or a look into a GGUF needs no native library.
_MODULES = {
    "binding.log": ("exit_on_abort", "set_log_level"),
    "chat.params": ("ChatParams",),
    "chat.parser": ("ChatDelta", "ChatMessage", "ChatParser", "ToolCall", "ToolCallDelta"),
    "chat.prompt": ("ChatPrompt",),
    "chat.template": ("ChatTemplate",),
    "conversation": ("Answer", "Conversation"),
    "drafting.interface": ("Drafter", "DrafterTraits", "DraftOutcome", "DraftRequest", "Proposal"),
    "drafting.params": ("DraftParams", "PlainReason"),
    "engine.chunk": ("Chunk",),
    "engine.context": ("ContextParams",),
    "engine.session": ("Chunk", "Session", "n_contexts"),
    "errors": (
        "BackendError",
        "Closed",
        "ContextFull",
        "InvalidParameter",
        "LibraryError",
        "ModelError",
        "NotFinite",
        "PymtpError",
        "RemoteError",
        "StateError",
        "UnsupportedModel",
    ),
    "loading.adapters": ("LoraAdapter",),
    "placement.devices": ("Device", "devices"),
    "loading.images": ("IMAGE_MARKER", "Image"),
    "loading.params": ("ModelParams",),
    "model": ("Model",),
    "sampling.params": ("SamplingParams",),
    "serving.batch": ("Batch",),
    "serving.controls": ("ModelAdapters", "ModelSlots"),
    "serving.generation": ("Generation",),
    "serving.params": ("GenerationParams",),
    "serving.statistics": ("Stats",),
    "version": ("__version__", "version_text"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "IMAGE_MARKER",
    "Answer",
    "BackendError",
    "Batch",
    "ChatDelta",
    "ChatMessage",
    "ChatParams",
    "ChatParser",
    "ChatPrompt",
    "ChatTemplate",
    "Chunk",
    "Closed",
    "ContextFull",
    "ContextParams",
    "Conversation",
    "Device",
    "DraftOutcome",
    "DraftParams",
    "DraftRequest",
    "Drafter",
    "DrafterTraits",
    "Generation",
    "GenerationParams",
    "Image",
    "InvalidParameter",
    "LibraryError",
    "LoraAdapter",
    "Model",
    "ModelAdapters",
    "ModelError",
    "ModelParams",
    "ModelSlots",
    "NotFinite",
    "PlainReason",
    "Proposal",
    "PymtpError",
    "RemoteError",
    "SamplingParams",
    "Session",
    "StateError",
    "Stats",
    "ToolCall",
    "ToolCallDelta",
    "UnsupportedModel",
    "__version__",
    "devices",
    "exit_on_abort",
    "n_contexts",
    "set_log_level",
    "version_text",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pymtp' has no attribute {name!r}")
    value = getattr(import_module(f"pymtp.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
