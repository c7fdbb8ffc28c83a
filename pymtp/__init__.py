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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pymtp.binding.log import exit_on_abort as exit_on_abort
    from pymtp.binding.log import set_log_level as set_log_level
    from pymtp.chat.params import ChatParams as ChatParams
    from pymtp.chat.parser import ChatDelta as ChatDelta
    from pymtp.chat.parser import ChatMessage as ChatMessage
    from pymtp.chat.parser import ChatParser as ChatParser
    from pymtp.chat.parser import ToolCall as ToolCall
    from pymtp.chat.parser import ToolCallDelta as ToolCallDelta
    from pymtp.chat.prompt import ChatPrompt as ChatPrompt
    from pymtp.chat.template import ChatTemplate as ChatTemplate
    from pymtp.conversation import Answer as Answer
    from pymtp.conversation import Conversation as Conversation
    from pymtp.drafting.interface import Drafter as Drafter
    from pymtp.drafting.interface import DrafterTraits as DrafterTraits
    from pymtp.drafting.interface import DraftOutcome as DraftOutcome
    from pymtp.drafting.interface import DraftRequest as DraftRequest
    from pymtp.drafting.interface import Proposal as Proposal
    from pymtp.drafting.params import DraftParams as DraftParams
    from pymtp.drafting.params import PlainReason as PlainReason
    from pymtp.engine.context import ContextParams as ContextParams
    from pymtp.engine.session import Chunk as Chunk
    from pymtp.engine.session import Session as Session
    from pymtp.engine.session import n_contexts as n_contexts
    from pymtp.errors import BackendError as BackendError
    from pymtp.errors import Closed as Closed
    from pymtp.errors import ContextFull as ContextFull
    from pymtp.errors import InvalidParameter as InvalidParameter
    from pymtp.errors import LibraryError as LibraryError
    from pymtp.errors import ModelError as ModelError
    from pymtp.errors import NotFinite as NotFinite
    from pymtp.errors import NothingAllowed as NothingAllowed
    from pymtp.errors import PymtpError as PymtpError
    from pymtp.errors import RemoteError as RemoteError
    from pymtp.errors import StateError as StateError
    from pymtp.errors import UnsupportedModel as UnsupportedModel
    from pymtp.loading.adapters import LoraAdapter as LoraAdapter
    from pymtp.loading.images import IMAGE_MARKER as IMAGE_MARKER
    from pymtp.loading.images import Image as Image
    from pymtp.loading.params import ModelParams as ModelParams
    from pymtp.model import Model as Model
    from pymtp.placement.devices import Device as Device
    from pymtp.placement.devices import devices as devices
    from pymtp.sampling.params import SamplingParams as SamplingParams
    from pymtp.serving.batch import Batch as Batch
    from pymtp.serving.controls import ModelAdapters as ModelAdapters
    from pymtp.serving.controls import ModelSlots as ModelSlots
    from pymtp.serving.generation import Generation as Generation
    from pymtp.serving.params import GenerationParams as GenerationParams
    from pymtp.serving.statistics import Stats as Stats
    from pymtp.version import __version__ as __version__
    from pymtp.version import version_text as version_text

# Imported on first use: a help text or a look into a GGUF needs no native library.
_MODULES = {
    "binding.log": "exit_on_abort set_log_level",
    "chat.params": "ChatParams",
    "chat.parser": "ChatDelta ChatMessage ChatParser ToolCall ToolCallDelta",
    "chat.prompt": "ChatPrompt",
    "chat.template": "ChatTemplate",
    "conversation": "Answer Conversation",
    "drafting.interface": "Drafter DrafterTraits DraftOutcome DraftRequest Proposal",
    "drafting.params": "DraftParams PlainReason",
    "engine.context": "ContextParams",
    "engine.session": "Chunk Session n_contexts",
    "errors": "BackendError Closed ContextFull InvalidParameter LibraryError ModelError NotFinite NothingAllowed"
    " PymtpError RemoteError StateError UnsupportedModel",
    "loading.adapters": "LoraAdapter",
    "loading.images": "IMAGE_MARKER Image",
    "loading.params": "ModelParams",
    "model": "Model",
    "placement.devices": "Device devices",
    "sampling.params": "SamplingParams",
    "serving.batch": "Batch",
    "serving.controls": "ModelAdapters ModelSlots",
    "serving.generation": "Generation",
    "serving.params": "GenerationParams",
    "serving.statistics": "Stats",
    "version": "__version__ version_text",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pymtp' has no attribute {name!r}")
    value = getattr(import_module(f"pymtp.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOME)
