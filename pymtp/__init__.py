"""pymtp: GGUF models that draft with their own MTP heads.

    import pymtp

    with pymtp.Model() as model:  # the embedded model; Model("model.gguf") for a file
        for piece in model.generate("Once upon a time", max_tokens=100, temperature=0.7):
            print(piece, end="", flush=True)

Model, its ModelSlots and ModelAdapters, and what it returns: Generation, Conversation, Answer, Stats.
Chats: ChatParams, ChatPrompt, ChatTemplate, and what answers are taken apart into: ChatParser, ChatMessage, ChatDelta.
Parameters: ModelParams, ContextParams, DraftParams, GenerationParams, SamplingParams.
Errors: PymtpError and those derived from it.
Drafters of your own: Drafter, DrafterTraits, DraftRequest, DraftOutcome, Proposal.
The layer below: Session, Chunk.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

# Imported on first use: a help text or a look into a GGUF needs no native library.
_IMPORTS = map(str.split, Path(__file__).with_suffix(".pyi").read_text("utf-8").splitlines())
_HOME = {words[3]: words[1] for words in _IMPORTS if words[:1] == ["from"]}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pymtp' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOME)
