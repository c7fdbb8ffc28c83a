"""What a session remembers, as bytes that only a session which can use them restores.

Owns the format: one line of JSON that names the engine and the model, then the engine's bytes. Knows nothing of what
they mean.
"""

import hashlib
import json
import os
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from pymtp.binding.library import abi_id, check, error_message, ffi, lib, made
from pymtp.errors import StateError, explained, require
from pymtp.text.files import StrPath, read_record

_MAGIC = b"pymtp-state "
HEAD_BYTES = 4096
"""Of a saved sequence: its header ends before."""


class DamagedState(StateError):
    """Not all of the bytes are those that were saved."""


ALL = -1
"""The sequences of a session, in the place of one."""


class Snapshots(ABC):
    """The part of a session that saves what it remembers."""

    _state_id: str  # names the weights, heads, cache, and adapters with their scales: a saved state belongs to them
    n_seq_max: int

    @property
    @abstractmethod
    def _native(self) -> Any:
        """The native session."""

    def save(self) -> bytes:
        """All sequences as bytes, what the heads know of them included. See `restore`."""
        return self._saved(ALL)

    def restore(self, data: bytes) -> None:
        """Restore what `save` returned, in this session or another of the same model and shape.

        Raises StateError for bytes that are damaged or of another model, version or shape; the session is then as
        before.
        """
        self._restored(ALL, data)

    def save_sequence(self, sequence: int) -> bytes:
        """One sequence as bytes, what the heads know of it included. See `restore_sequence`."""
        return self._saved(self._one(sequence))

    def restore_sequence(self, sequence: int, data: bytes) -> None:
        """Make a sequence what `save_sequence` returned, of this session or another of the same model.

        Raises StateError for bytes that are damaged or do not fit, or for which the cache has no room; the sequence is
        empty then, unless they are damaged.
        """
        self._restored(self._one(sequence), data)

    def save_file(self, path: StrPath) -> None:
        """`save` into a file. Raises StateError if it cannot be written; what was there before stays then."""
        write(path, self.save())

    def restore_file(self, path: StrPath) -> None:
        """`restore` from a file."""
        self.restore(read(path))

    def can_restore(self, head: bytes) -> bool:
        """Whether a saved sequence that begins with these bytes (HEAD_BYTES) is of this model and version."""
        try:
            _header(head, engine=abi_id(), model=self._state_id)
        except StateError:
            return False
        return True

    def _one(self, sequence: int) -> int:
        require(0 <= sequence < self.n_seq_max, "sequence", f"between 0 and {self.n_seq_max - 1}", sequence)
        return sequence

    def _saved(self, sequence: int) -> bytes:
        state, size = made("state", lib.pymtp_session_save, self._native, sequence), ffi.new("size_t *")
        data = lib.pymtp_state_data(state, size)
        return pack(memoryview(ffi.buffer(data, size[0])), engine=abi_id(), model=self._state_id)

    def _restored(self, sequence: int, data: bytes) -> None:
        payload = unpack(data, engine=abi_id(), model=self._state_id)
        # released before an error keeps it: Python crashes where it collects a view that is in use
        with ffi.from_buffer("uint8_t[]", payload) as native:
            status = lib.pymtp_session_restore(self._native, sequence, native, len(payload))
        if status == lib.PYMTP_INVALID:
            raise StateError(error_message())
        check(status)


def pack(payload: bytes | memoryview, *, engine: str, model: str) -> bytes:
    """The engine's bytes with a header in front. `engine` and `model` name the versions that can read them."""
    header = {"engine": engine, "model": model, "n_bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    return b"".join([_MAGIC, json.dumps(header).encode(), b"\n", payload])


def unpack(data: bytes, *, engine: str, model: str) -> memoryview:
    """The engine's bytes. Raises StateError if they are damaged (DamagedState), or of another version or model."""
    head, saved = _header(data[:HEAD_BYTES], engine=engine, model=model)
    payload = memoryview(data)[len(head) + 1 :]
    if len(payload) != saved["n_bytes"]:
        raise DamagedState(f"the saved state is truncated: {len(payload)} of {saved['n_bytes']} bytes; save it again")
    if hashlib.sha256(payload).hexdigest() != saved["sha256"]:
        raise DamagedState("the saved state is damaged (its checksum differs); save it again")
    return payload


def digest(about: bytes, data: bytes) -> str:
    """A checksum of what a file says of a saved sequence, and of that; its own header has one of the rest."""
    return hashlib.sha256(about + data[:HEAD_BYTES]).hexdigest()[:32]


def _header(data: bytes, *, engine: str, model: str) -> tuple[bytes, dict[str, Any]]:
    """The line before the engine's bytes, and what it says. Raises StateError for another version or model."""
    head, newline, _ = data.partition(b"\n")
    if not head.startswith(_MAGIC) or not newline:
        raise StateError("this is not a saved state of pymtp; name a file that pymtp has saved")
    try:
        header = json.loads(head[len(_MAGIC) :])
        saved = {key: header[key] for key in ("engine", "model", "n_bytes", "sha256")}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise StateError("the header of the saved state is damaged; save it again") from None
    if saved["engine"] != engine:
        raise StateError(f"the state was saved by another version ({saved['engine']}, this is {engine}); save it again")
    if saved["model"] != model:
        fix = "load the model that it belongs to, with its heads and cache"
        raise StateError(f"the state was saved with another model; {fix}")
    return head, saved


def write(path: StrPath, data: bytes) -> None:
    """Write all of `data` to `path`, or leave what was there. Raises StateError."""
    with explained(f"write {os.fspath(path)}", "choose another place", StateError):
        target = Path(path).resolve()  # a link stays one
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            try:
                file.write(data)
                file.close()
                os.replace(file.name, target)
            except BaseException:
                os.unlink(file.name)
                raise


def read(path: StrPath) -> bytes:
    """The bytes of the file at `path`. Raises StateError."""
    with explained(f"read {os.fspath(path)!r}", "check the path", StateError):
        return read_record(path)
