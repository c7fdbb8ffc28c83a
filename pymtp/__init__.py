"""pymtp: GGUF models that draft with their own MTP heads.

with pymtp.Model() as model:
    for piece in model.generate("Once upon a time"):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pymtp._log import exit_on_abort, set_log_level
    from pymtp._version import __version__, version_text
    from pymtp.batch import Batch, Generation
    from pymtp.context import ContextParams
    from pymtp.conversation import Answer, Conversation
    from pymtp.errors import PymtpError
    from pymtp.model import Model
    from pymtp.request import GenerationParams
    from pymtp.sampling import SamplingParams
    from pymtp.session import Chunk, Session, n_contexts
    from pymtp.statistics import Stats

__all__ = [
    "Answer",
    "Batch",
    "Chunk",
    "ContextParams",
    "Conversation",
    "Generation",
    "GenerationParams",
    "Model",
    "PymtpError",
    "SamplingParams",
    "Session",
    "Stats",
    "__version__",
    "exit_on_abort",
    "n_contexts",
    "set_log_level",
    "version_text",
]

# Imported on first use: a help text or a look into a GGUF needs no native library.
_HOME = {
    "Answer": "conversation",
    "Batch": "batch",
    "Chunk": "session",
    "ContextParams": "context",
    "Conversation": "conversation",
    "Generation": "batch",
    "GenerationParams": "request",
    "Model": "model",
    "PymtpError": "errors",
    "SamplingParams": "sampling",
    "Session": "session",
    "Stats": "statistics",
    "__version__": "_version",
    "exit_on_abort": "_log",
    "n_contexts": "session",
    "set_log_level": "_log",
    "version_text": "_version",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pymtp' has no attribute {name!r}")
    value = getattr(import_module(f"pymtp.{_HOME[name]}"), name)
    globals()[name] = value
    return value
