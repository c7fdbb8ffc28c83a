"""The metadata of a GGUF as bytes, pair by pair, so that a copy has every bit of the original.

Owns the encoding of the few values that change. Knows nothing about models.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pymtp.gguf.header import SCALARS, ArrayLength
from pymtp.gguf.shards import Shard

_UINT32 = 4


class Metadata:
    """Pairs of keys and values, in the order in which they are written."""

    def __init__(self, shard: Shard) -> None:
        self._values = dict(shard.header.metadata)
        with shard.path.open("rb") as file:
            header = file.read(shard.header.size_bytes)
        self._pairs = {key: header[start:end] for key, (start, end) in shard.header.spans.items()}

    def __contains__(self, key: str) -> bool:
        return key in self._pairs

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def keys(self) -> tuple[str, ...]:
        """All of them, in order."""
        return tuple(self._pairs)

    @property
    def alignment(self) -> int:
        """Of the data of tensors, in bytes."""
        value = self._values.get("general.alignment", 32)
        assert isinstance(value, int)  # checked when the shard was read
        return value

    def length(self, key: str) -> int | None:
        """The length of an array; None for other values."""
        value = self._values.get(key)
        return value.length if isinstance(value, ArrayLength) else None

    def take(self, key: str, other: Metadata) -> None:
        """Have the pair `key` of `other`, in the place of one's own if there is one."""
        self._pairs[key] = other._pairs[key]
        self._values[key] = other._values[key]

    def set_number(self, key: str, value: int) -> None:
        """Have `value` as a uint32, in the place of the pair `key` if there is one."""
        name = key.encode()
        self._pairs[key] = struct.pack("<Q", len(name)) + name + struct.pack("<II", _UINT32, value)
        self._values[key] = value

    def extend(self, key: str, values: Sequence[int | float | str]) -> None:
        """Have more elements at the end of an array of numbers."""
        array, pair = self._values[key], self._pairs[key]
        assert isinstance(array, ArrayLength)
        start = 8 + len(key.encode()) + 4 + 4  # the type of the elements is before their number
        more = b"".join(SCALARS[array.type_id].pack(value) for value in values)
        self._pairs[key] = pair[:start] + struct.pack("<Q", array.length + len(values)) + pair[start + 8 :] + more

    def drop(self, prefix: str) -> None:
        """Leave out the keys that begin with `prefix`."""
        for key in [key for key in self._pairs if key.startswith(prefix)]:
            del self._pairs[key], self._values[key]

    def encoded(self) -> bytes:
        """All pairs, as a header has them."""
        return b"".join(self._pairs.values())
