"""Damaged GGUFs: headers through `pymtp inspect`'s reader, and whole files through the loader.

A header is taken apart into its values and tensors, so that a change reaches what is built from it; a third of the
cases have random bytes changed as well.
"""

from __future__ import annotations

import os
import random
import struct
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pymtp import ContextParams, DraftParams, Model, ModelParams, PymtpError
from pymtp.drafting.choice import choose_drafter
from pymtp.gguf.facts import find_draft_model, model_facts
from pymtp.gguf.header import MAGIC
from pymtp.inspection import Inspection
from pymtp.options import Params
from pymtp.placement.demand import Demand
from pymtp.placement.fit import fit
from pymtp.placement.places import Spot, places
from pymtp.placement.plan import MemoryPlan, plan
from random_gguf import write_deepseek4, write_gemma4, write_glm4moe, write_mimo2, write_qwen35, write_step35

from .fuzzer import NUMBERS, Fuzzer, damaged

_WRITERS = (write_glm4moe, write_mimo2, write_qwen35, write_deepseek4, write_step35, write_gemma4)
_FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_HOST = Spot("CPU", "", None, "CPU")
_SMALL = [Spot(f"GPU{i}", "", size, f"GPU{i}") for i, size in enumerate((1100 << 20, 1200 << 20))]
_FLOATS = [0.0, -1.0, 1e38, float("inf"), float("nan"), 1e-40]


@dataclass
class Parts:
    """A GGUF, taken apart."""

    values: list[tuple[bytes, int, bytes]]
    """Key, type and the bytes of a value."""
    tensors: list[tuple[bytes, list[int], int, int]]
    """Name, shape, type, offset."""
    data: bytes

    def joined(self, chance: random.Random | None = None) -> bytes:
        """The file; with `chance`, its version and counts are wrong at times."""
        counts, version = [len(self.tensors), len(self.values)], 3
        if chance and chance.random() < 0.03:
            counts[chance.randrange(2)] = chance.choice(NUMBERS)
        if chance:
            version = chance.choice([3] * 50 + [2, 1, 4, 3 << 24])
        parts = [MAGIC, struct.pack("<IQQ", version, *counts)]
        for key, kind, value in self.values:
            parts += [_text(key), struct.pack("<I", kind), value]
        for name, shape, kind, offset in self.tensors:
            numbers = [*(n % 2**64 for n in shape), kind % 2**32, offset % 2**64]
            parts += [_text(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *numbers)]
        header = b"".join(parts)
        return header + bytes(-len(header) % 32) + self.data


def _text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def take_apart(file: bytes) -> Parts:
    """The parts of a GGUF that is sound."""
    at = 8

    def number(form: str = "Q") -> int:
        nonlocal at
        at += struct.calcsize(form)
        return int(struct.unpack_from(f"<{form}", file, at - struct.calcsize(form))[0])

    def skip(kind: int) -> None:
        nonlocal at
        if kind == _STRING:
            size = number()
            at += size
        elif kind == _ARRAY:
            inner, n = number("I"), number()
            for _ in range(n):
                skip(inner)
        else:
            at += struct.calcsize(_FORMS[kind])

    def text() -> bytes:
        nonlocal at
        size = number()
        at += size
        return file[at - size : at]

    n_tensors, n_values = number(), number()
    values, tensors = [], []
    for _ in range(n_values):
        key, kind, start = text(), number("I"), at
        skip(kind)
        values.append((key, kind, file[start:at]))
    for _ in range(n_tensors):
        name, n_dims = text(), number("I")
        tensors.append((name, [number() for _ in range(n_dims)], number("I"), number()))
    return Parts(values, tensors, file[at + -at % 32 :])


class Headers(Fuzzer):
    """inspect's reader. The files end with their headers, but for a hole in the place of the tensors."""

    name = "headers"
    is_interruptible = True
    memory_bytes = 48 << 20  # the map of a file, and twice as much

    _HOLE = 16 << 20

    def __init__(self, folder: Path) -> None:
        self._path = folder / "fuzzed.gguf"
        self._bases = [take_apart(write(folder / "base.gguf").read_bytes()) for write in _WRITERS]
        (folder / "base.gguf").unlink()
        self._keys = sorted({key for base in self._bases for key, _, _ in base.values})
        from pymtp_cli.inspect import _as_json, _as_text

        self._show = (_as_text, _as_json)

    def case(self, chance: random.Random) -> bytes:
        base = chance.choice(self._bases)
        parts = Parts(list(base.values), [(n, list(s), k, o) for n, s, k, o in base.tensors], b"")
        for _ in range(chance.choice([1, 1, 1, 2, 4])):
            self._change(chance, parts)
        made = parts.joined(chance)
        return damaged(chance, made) if chance.random() < 1 / 3 else made

    def run(self, case: bytes) -> str:
        self._path.write_bytes(case)
        os.truncate(self._path, len(case) + self._HOLE)
        try:
            found = Inspection(self._path)
        except PymtpError:
            return "refused"
        planned = self._plan() if found.has_trunk and not found.info.model_file.is_assistant else None
        for show in self._show:
            show(found, planned).encode(errors="replace")
        if zlib.crc32(case) % 8:  # the same reader again
            return "inspected"
        try:
            model_facts(self._path)
            find_draft_model(self._path)
        except PymtpError:
            return "inspected, not a model"
        return "inspected, for a model too"

    def _plan(self) -> MemoryPlan | None:
        """What would go where, on this machine; and on two small devices, by numbers alone."""
        params = Params(ModelParams(device=()), ContextParams(n_threads=1), DraftParams())
        try:
            info, choice = choose_drafter(self._path, params.drafting)
            of = partial(Demand, info, params, choice)
            fit(ModelParams(), of, _SMALL, lambda tried, need: places(tried, (), need, _SMALL, _HOST), may_shrink=True)
            return plan(self._path, params)
        except PymtpError:
            return None

    def _change(self, chance: random.Random, parts: Parts) -> None:
        """One change of what a header says."""
        if chance.random() < 0.25 and parts.tensors:
            self._change_tensor(chance, parts)
            return
        at = chance.randrange(len(parts.values))
        key, kind, value = parts.values[at]
        what = chance.randrange(10)
        if what == 0:
            del parts.values[at]
        elif what == 1:
            parts.values[at] = (chance.choice(self._keys), kind, value)
        elif what == 2:
            parts.values.append(chance.choice(chance.choice(self._bases).values))
        elif what == 3:
            parts.values[at] = (key, chance.randrange(14), value)
        elif what == 4:
            parts.values[at] = (key, _STRING, _text(chance.choice([b"", b"a" * 100, b"\xff\xfe", b"llama", b"mtp"])))
        elif kind == _ARRAY and what < 8 and len(value) >= 12:
            inner, n = struct.unpack_from("<IQ", value)
            odd = (chance.choice([inner, inner, chance.randrange(14)]), chance.choice([n - 1, n + 1, *NUMBERS]))
            parts.values[at] = (key, kind, struct.pack("<IQ", odd[0], odd[1] % 2**64) + value[12:])
        else:
            scalar = kind if kind in _FORMS else 4
            parts.values[at] = (key, scalar, _number(chance, scalar))

    def _change_tensor(self, chance: random.Random, parts: Parts) -> None:
        at = chance.randrange(len(parts.tensors))
        name, shape, kind, offset = parts.tensors[at]
        what = chance.randrange(7)
        if what == 0:
            del parts.tensors[at]
        elif what == 1:
            parts.tensors.append(parts.tensors[at])
        elif what == 2:
            kind = chance.choice([*range(40), *NUMBERS[:11]]) % 2**32
        elif what == 3:
            offset = chance.choice([offset + 1, offset * 2, *NUMBERS])
        elif what == 4:
            name = chance.choice([b"", b"a" * 70, b"blk.99999999999.x", b"blk.7.nextn.eh_proj.weight", name + b".x"])
        elif what == 5 and shape:
            shape[chance.randrange(len(shape))] = chance.choice(NUMBERS)
        else:
            shape = shape[::-1] if chance.random() < 0.5 else [*shape, chance.choice([1, 2, 2**40])][-6:]
        if what > 1:
            parts.tensors[at] = (name, shape, kind, offset)


def _number(chance: random.Random, kind: int) -> bytes:
    if kind in (6, 12):
        return struct.pack(f"<{_FORMS[kind]}", chance.choice(_FLOATS))
    size = struct.calcsize(_FORMS[kind])
    number = chance.choice([*NUMBERS, chance.randrange(600), 2 ** (8 * size) - chance.randrange(1, 4)])
    return (number % 256**size).to_bytes(size, "little")


class Loads(Headers):
    """Whole files through the loader; those that load make four tokens."""

    name = "loads"
    is_interruptible = False
    limit_s = 30.0
    memory_bytes = 2 << 30

    def case(self, chance: random.Random) -> bytes:
        base = chance.choice(self._bases)
        parts = Parts(list(base.values), [(n, list(s), k, o) for n, s, k, o in base.tensors], base.data)
        self._change(chance, parts)
        if chance.random() < 0.2:
            self._change(chance, parts)
        return parts.joined(chance)

    def run(self, case: bytes) -> str:
        self._path.write_bytes(case)
        try:
            with Model(self._path, n_ctx=64, n_threads=1, draft_max=2) as model:
                made = model.generate([5, 6, 7], max_tokens=4, temperature=0, ignore_eos=True)
                for _ in made:
                    pass
        except PymtpError:
            return "refused"
        return "loaded"
