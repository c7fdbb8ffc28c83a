"""Saved chats: one file each, as JSON, written whole or not at all.

Owns the format, and the place of the chat that is saved by itself. Knows messages; nothing about models.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from pymtp import Conversation, InvalidParameter, PymtpError
from pymtp.chat.images import as_url, source_of
from pymtp.engine import snapshot
from pymtp.text.files import read_text_record


class SavedChat(msgspec.Struct):
    """A conversation without its model."""

    format: Literal["pymtp chat"]
    messages: list[dict[str, str | tuple[str, ...] | None]]
    system: str | None = None


def last_chat() -> Path:
    """Where the latest chat at a terminal is saved."""
    from platformdirs import user_state_path

    return user_state_path("pymtp", appauthor=False) / "last_chat.json"


def write(path: Path, conversation: Conversation) -> None:
    """Save a conversation with its images. Raises StateError if the file cannot be written."""
    messages = [
        {**message, "images": [as_url(image.data) for image in message["images"]]} if "images" in message else message
        for message in conversation.messages
    ]
    saved = {"format": "pymtp chat", "system": conversation.system, "messages": messages}
    snapshot.write(path, f"{json.dumps(saved, ensure_ascii=False, indent=1)}\n".encode("utf-8", "replace"))


def autosave(conversation: Conversation) -> None:
    """Save a conversation for `pymtp chat --resume`. Errors are ignored: a full disk must not stop the chat."""
    with suppress(OSError, PymtpError):
        path = last_chat()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(path, conversation)


def is_chat(path: Path) -> bool:
    """Whether there is a saved chat at `path`."""
    try:
        return read(read_text_record(path)) is not None
    except (OSError, ValueError):
        return False


def read(text: str) -> SavedChat | None:
    """The chat in the text of a file, or None if it is not one."""
    try:
        saved = msgspec.json.decode(text, type=SavedChat)
        with_images: list[Any] = [message for message in saved.messages if "images" in message]
        for message in with_images:  # as bytes: a file that somebody sent names no others
            message["images"] = [source_of({"type": "image_url", "image_url": url}) for url in message["images"]]
    except (msgspec.DecodeError, RecursionError, InvalidParameter, TypeError):
        return None
    return saved
