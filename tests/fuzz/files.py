"""Damaged files of text: what pymtp writes and reads again, and what users give it."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pymtp import PymtpError
from pymtp.benchmark.prompts import read_texts
from pymtp.engine import snapshot

from .fuzzer import Fuzzer, damaged, damaged_json, damaged_text

_CHAT = {"format": "pymtp chat", "system": None, "messages": [{"role": "user", "content": "Hi"}]}
_PROMPT = {"category": "a", "prompt": "b", "answer": "c"}
_MESSAGES = {"category": "a", "messages": [{"role": "user", "content": "Hi"}], "answer": "c"}


class Files(Fuzzer):
    """Each reader on files that are nearly what it reads."""

    name = "files"
    memory_bytes = 512 << 20  # a file of 64 MiB, as bytes and as text of four bytes each

    def __init__(self, folder: Path) -> None:
        from pymtp_cli.chat import files as chats

        self._path = folder / "file"
        os.mkfifo(folder / "fifo")
        self._odd = [Path("/dev/zero"), folder, folder / "nothing"]
        self._records = ("chat", "state")  # others may be pipes, and are waited for
        self._readers: dict[str, tuple[Callable[[Path], Any], list[Any]]] = {
            "chat": (lambda path: chats.is_chat(path), [_CHAT]),
            "prompts": (read_texts, [_PROMPT, _MESSAGES]),
            "answers": (partial(read_texts, with_answers=True), [_PROMPT, _MESSAGES]),
            "state": (lambda path: snapshot.unpack(snapshot.read(path), engine="e", model="m"), [{"engine": "e"}]),
        }

    def case(self, chance: random.Random) -> tuple[str, bytes | Path]:
        name = chance.choice(list(self._readers))
        if chance.random() < 0.01:
            fifo = [self._path.with_name("fifo")] if name in self._records else []
            return name, chance.choice([*self._odd, *fifo])
        base = chance.choice(self._readers[name][1])
        lines = [base, *(damaged_json(chance, base) for _ in range(chance.randrange(3)))]
        data = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode(errors="surrogatepass") + b"\n"
        kind = chance.randrange(4)
        if kind == 0:
            data = damaged(chance, data)
        elif kind == 1:
            text = damaged_text(chance, data.decode(errors="replace"), ["{", "}", "[", "]", ",", "null", '"'])
            data = text.encode(errors="surrogatepass")
        elif kind == 2 and chance.random() < 0.1:
            data = chance.choice([b"[", b'{"a":']) * 100_000
        if name == "state":
            data = b"pymtp-state " + data
        return name, data

    def run(self, case: tuple[str, bytes | Path]) -> str:
        name, data = case
        if isinstance(data, Path):
            path = data
        else:
            path = self._path
            path.write_bytes(data)
        try:
            self._readers[name][0](path)
        except (PymtpError, OSError):  # commands say what the system says
            return "refused"
        return "read"
