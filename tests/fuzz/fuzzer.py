"""What a fuzzer is, and the random choices that several of them make.

Knows bytes, texts and JSON; nothing of pymtp.
"""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

NUMBERS = [0, 1, 2, 3, 255, 256, 4095, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
"""Of which many are beyond a limit of something."""
ODD_VALUES: list[Any] = [None, True, False, 0, -1, 1.5, 1e308, -1e-308, 10**30, "", "a", "\0", "\ud800", "é" * 300]
ODD_VALUES += [[], {}, [[]], {"": {}}, [None], 2**31, 2**63, 2**64]


class Fuzzer(ABC):
    """Makes cases and runs them. Is made once in each process; what it needs it writes to `folder`."""

    name: str
    limit_s = 10.0
    """Of one case."""
    is_interruptible = False
    """Whether all of a case is Python, where a hang is an exception: nothing has to end the process then."""
    memory_bytes = 512 << 20
    """That cases may take beyond what the process has when the fuzzer is ready."""

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @abstractmethod
    def case(self, chance: random.Random) -> Any:
        """A random case."""

    @abstractmethod
    def run(self, case: Any) -> str:
        """Run a case; return what became of it, in a word. Raises what is a fault."""


def damaged(chance: random.Random, data: bytes, n_max: int = 6) -> bytes:
    """Bytes with up to `n_max` random changes."""
    made = bytearray(data)
    for _ in range(chance.randint(1, n_max)):
        at = chance.randrange(len(made) + 1)
        size = min(chance.choice([1, 1, 2, 4, 8, 8, 64, 1024]), len(made) - at)
        kind = chance.randrange(8)
        if kind == 0 and at < len(made):
            made[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(made):
            made[at] = chance.randrange(256)
        elif kind == 2:
            width = chance.choice([4, 8])
            made[at : at + width] = (chance.choice(NUMBERS) % (1 << (8 * width))).to_bytes(width, "little")
        elif kind == 3:
            del made[at : at + size]
        elif kind == 4:
            made[at:at] = chance.randbytes(size)
        elif kind == 5:
            other = chance.randrange(len(made) + 1)
            made[at : at + size] = made[other : other + size]
        elif kind == 6:
            made[at:at] = made[at : at + size]
        elif chance.random() < 0.3:
            del made[at:]
    return bytes(made)


def damaged_text(chance: random.Random, text: str, pieces: list[str], n_max: int = 5) -> str:
    """A text in which words are removed, repeated and swapped, and `pieces` put in."""
    parts = _split(text)
    for _ in range(chance.randint(1, n_max)):
        at = chance.randrange(len(parts) + 1)
        end = min(at + chance.choice([1, 1, 2, 5, 20]), len(parts))
        kind = chance.randrange(6)
        if kind == 0:
            del parts[at:end]
        elif kind == 1:
            parts[at:at] = parts[at:end]
        elif kind == 2 and parts:
            other = chance.randrange(len(parts))
            parts[at:end] = parts[other : other + end - at]
        elif kind == 3:
            parts.insert(at, chance.choice(pieces))
        elif kind == 4:
            parts.insert(at, chance.choice(["\0", "\ud800", "é", "\n", '"', "\\", "(" * 50, "9" * 30, "-1", "a" * 500]))
        elif at < len(parts):
            parts[at] = chance.choice(pieces)
    return "".join(parts)


def _split(text: str) -> list[str]:
    parts, word = [], ""
    for char in text:
        if char.isalnum():
            word += char
        else:
            parts += [word, char] if word else [char]
            word = ""
    return [*parts, word]


def nested(chance: random.Random) -> Any:
    """JSON that is nested more deeply than most readers bear."""
    value: Any = "end"
    for _ in range(chance.choice([10, 100, 400, 900, 3000])):
        value = [value] if chance.random() < 0.5 else {chance.choice(["a", "items", "properties", "anyOf"]): value}
    return value


def damaged_json(chance: random.Random, value: T, others: list[Any] = ODD_VALUES, n_max: int = 3) -> T:
    """A copy of decoded JSON, in which up to `n_max` values or keys are others."""
    root = [copy.deepcopy(value)]
    for _ in range(chance.randint(1, n_max)):
        places = list(_places(root))
        holder, key = chance.choice(places)
        kind = chance.randrange(6)
        if kind == 0 and len(places) > 1:
            _remove(holder, key)
        elif kind == 1:
            source, name = chance.choice(places)
            holder[key] = copy.deepcopy(source[name])
        elif kind == 2 and isinstance(holder, dict):
            keys = [name for one, name in places if isinstance(one, dict)]
            holder[chance.choice([*keys, "", "a" * 1000])] = holder.pop(key)
        elif kind == 3 and chance.random() < 0.1:
            holder[key] = nested(chance)
        elif kind == 4 and isinstance(holder[key], str):
            holder[key] = damaged_text(chance, holder[key], ["null", "{", "}", " "])
        elif kind == 5 and type(holder[key]) is int:
            holder[key] = chance.choice([-holder[key], holder[key] * 1000, *NUMBERS, -1])
        else:
            holder[key] = copy.deepcopy(chance.choice(others))
        if not root:
            break
    return root[0] if root else None  # type: ignore[return-value]


def _remove(holder: Any, key: Any) -> None:
    del holder[key]
    if isinstance(holder, list) and not holder:
        holder.append(None)


def _places(holder: Any) -> Any:
    """All values in decoded JSON, each as what holds it and its key or index."""
    for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
        yield holder, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def random_json(chance: random.Random, depth: int = 3) -> Any:
    """Any small JSON."""
    kind = chance.randrange(4) if depth else 3
    if kind == 0:
        return [random_json(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind == 1:
        keys = ["a", "type", "text", "role", "content", "", "id"]
        return {chance.choice(keys): random_json(chance, depth - 1) for _ in range(chance.randrange(4))}
    return chance.choice(ODD_VALUES)
