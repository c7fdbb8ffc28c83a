"""What a head learns from: tokens, and the hidden state of the trunk at each, on disk.

Owns the files of rows, and the reading and writing of the model that fills them. Knows no PyTorch.
"""

import json
import random
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pymtp.engine.session import Chunk
from pymtp.errors import ModelError, explained
from pymtp.model import Model
from pymtp.sampling.chain import Sampler
from pymtp.sampling.params import SamplingParams

N_TOKENS = 256
"""The most of a text."""
N_TEXTS = 32
"""Texts that the model writes at the same time."""

Progress = Callable[[str], object]
"""Called with one line, now and then."""


class Rows:
    """The rows of texts in a folder. A text counts once its length is written: one that was cut off leaves nothing."""

    def __init__(self, folder: Path, n_embd: int) -> None:
        self.kind = np.dtype([("token", "<i4"), ("hidden", "<f2", (n_embd,))])
        self.path, self._ends = folder / "rows.bin", folder / "lengths.bin"
        read = self._ends.read_bytes() if self._ends.exists() else b""
        self.lengths = [int(n) for n in np.frombuffer(read[: len(read) // 4 * 4], "<i4")]
        """Of each text, in rows."""
        for path, n_bytes in ((self.path, len(self) * self.kind.itemsize), (self._ends, 4 * len(self.lengths))):
            with path.open("ab") as file:
                file.truncate(n_bytes)

    def __len__(self) -> int:
        return sum(self.lengths)

    def check_room(self, n_rows: int) -> int:
        """The bytes until there are `n_rows`. Raises ModelError if the disk has no room for them."""
        needed, free = max(0, n_rows - len(self)) * self.kind.itemsize, shutil.disk_usage(self.path.parent).free
        if free < needed:
            raise ModelError(f"{self.path} needs {needed} bytes of {free} that are free; take fewer rows (--rows)")
        return needed

    def add(self, tokens: Sequence[int], hidden: npt.NDArray[np.float32]) -> None:
        """Keep one text. Raises ModelError if that fails."""
        rows = np.empty(len(tokens), self.kind)
        rows["token"], rows["hidden"] = tokens, hidden
        with explained(f"write {self.path}", "free some room and repeat the command", ModelError):
            for path, values in ((self.path, rows), (self._ends, np.array([len(tokens)], "<i4"))):
                with path.open("ab") as file:
                    file.write(values.tobytes())
        self.lengths.append(len(tokens))


class Source:
    """Texts and prompts of files, at random places; endless. Raises ModelError for files without any."""

    def __init__(self, model: Model, data: Sequence[Path], seed: int) -> None:
        self._model, self._rng = model, random.Random(seed)
        with explained(f"read {', '.join(map(str, data))}", "check names and permissions", ModelError):
            files = [file for path in data for file in (sorted(path.iterdir()) if path.is_dir() else []) or [path]]
            for path in files:
                if not path.is_file() or (path in data and path.stat().st_size == 0):
                    raise ModelError(f"{path}: no such file, or nothing in it; name texts, or prompts in *.jsonl")
        self.texts = [path for path in files if path.suffix != ".jsonl"]
        self.prompts = [path for path in files if path.suffix == ".jsonl"]

    def text(self) -> list[int]:
        """At most N_TOKENS tokens."""
        return self._model.tokenize(self._piece(self._rng.choice(self.texts), 8 * N_TOKENS))[:N_TOKENS] or [0]

    def prompt(self) -> tuple[list[int], list[int]]:
        """Tokens that the model continues, and what follows its first answer, before a second; []: nothing."""
        if self.texts and (not self.prompts or self._rng.randrange(2)):
            return self.text()[: self._rng.randint(8, N_TOKENS // 4)], []
        if not self.prompts:
            return self._made_up()
        why: object = "empty or too long"
        for _ in range(1000):
            path = self._rng.choice(self.prompts)
            try:
                tokens = self._tokens(json.loads(self._piece(path, 2**16).partition("\n")[0]))
            except (ValueError, LookupError, TypeError, AttributeError, ModelError) as error:
                why = error  # a line that was cut off, or holds no prompt, or none that the template takes
                continue
            if 0 < len(tokens) < N_TOKENS * 3 // 4:
                return tokens, []
        raise ModelError(f'{path}: 1000 bad lines ({why}); a line is {{"prompt": "..."}} or {{"messages": [...]}}')

    def _tokens(self, line: Any) -> list[int]:
        if "messages" not in line:
            return self._model.tokenize(line["prompt"])
        last = max(i for i, message in enumerate(line["messages"]) if message["role"] == "user")
        return self._model.tokenize(self._model.chat_prompt(line["messages"][: last + 1]))

    def _made_up(self) -> tuple[list[int], list[int]]:
        """What comes before a question, which the model writes, and what comes before its answer."""
        if not self._model.has_chat_template:
            return [max(self._model.vocabulary.bos, 0)], []
        before, _, after = self._model.chat_prompt([{"role": "user", "content": "<question>"}]).partition("<question>")
        return self._model.tokenize(before), self._model.vocabulary.tokenize(after, is_start=False)

    def _piece(self, path: Path, n_bytes: int) -> str:
        """Part of a file that begins with a line, the first one after the last; or within a line that is longer."""
        with explained(f"read {path}", "check its permissions", ModelError), path.open("rb") as file:
            file.seek(self._rng.randrange(path.stat().st_size + 1))
            file.readline(n_bytes)
            if not (piece := file.read(n_bytes)):
                file.seek(0)
                piece = file.read(n_bytes)
            return piece.decode(errors="ignore")


@dataclass
class _Text:
    """One that the model is writing, in a sequence of its own."""

    chunk: list[int]
    """What it has not decoded yet."""
    then: list[int]
    sampler: Sampler
    tokens: list[int] = field(default_factory=list)
    hidden: list[npt.NDArray[np.float32]] = field(default_factory=list)


class Collector:
    """Fills rows by passes of a model that has a head, whose hidden states are those that it reads."""

    def __init__(self, model: Model, rows: Rows, source: Source) -> None:
        self._session, self._rows, self._source = model.session, rows, source
        self._rng, self._vocabulary = np.random.default_rng(len(rows)), model.vocabulary
        self._ends = model.vocabulary.end_of_generation
        self._writing: dict[int, _Text] = {}

    def run(self, n_rows: int, deadline: float, on_progress: Progress) -> None:
        """Until there are `n_rows`, or it is time (of time.monotonic): of texts, as many are read as written."""
        said, balance = time.monotonic(), 0
        while len(self._rows) < n_rows and time.monotonic() < deadline:
            before = len(self._rows)
            if self._source.texts and balance <= 0:
                self._read()
                balance += len(self._rows) - before
            else:
                self._write()
                balance -= len(self._rows) - before
            if time.monotonic() > said + 10:
                said = time.monotonic()
                on_progress(f"collecting: {len(self._rows)} of {n_rows} rows, at most {deadline - said:.0f} s more")

    def _read(self) -> None:
        """A text, in the last sequence."""
        tokens, sequence = self._source.text(), N_TEXTS
        self._session.decode([Chunk(tokens, 0, sequence, logits="none")])
        self._rows.add(tokens, self._session.hidden_states(0, len(tokens), sequence=sequence))
        self._session.truncate(0, sequence=sequence)

    def _write(self) -> None:
        """The next token of each text."""
        for sequence in range(N_TEXTS):
            if sequence not in self._writing:
                chunk, then = self._source.prompt()
                self._writing[sequence] = _Text(chunk, then, self._sampler(1) if then else self._answering())
                self._decode([sequence])
        if self._writing:  # not all of them ended with their first token
            self._decode(list(self._writing))

    def _decode(self, sequences: Sequence[int]) -> None:
        """A pass of what these texts have not decoded; what follows it is what they decode next."""
        texts = [(sequence, self._writing[sequence]) for sequence in sequences]
        self._session.decode([Chunk(text.chunk, len(text.tokens), sequence) for sequence, text in texts])
        for row, (sequence, text) in zip(self._session.rows(), texts, strict=True):
            text.hidden.append(self._session.hidden_states(len(text.tokens), len(text.chunk), sequence=sequence))
            text.tokens += text.chunk
            text.chunk = [text.sampler.sample(row)]
            has_ended = text.chunk[0] in self._ends
            if has_ended and text.then:
                # the template ends the question as well, where it ends with a token of its own
                text.chunk = text.then if text.then[:1] == text.chunk else text.chunk + text.then
                text.then, text.sampler = [], self._answering()
            elif has_ended:
                text.chunk = []
            if not text.chunk or len(text.tokens) + len(text.chunk) > N_TOKENS:
                self._rows.add(text.tokens, np.concatenate(text.hidden))
                self._session.truncate(0, sequence=sequence)
                del self._writing[sequence]

    def _answering(self) -> Sampler:
        """Of the trunk's own distribution, or its most likely tokens; to an end, or without one, as benchmarks do."""
        return self._sampler(int(self._rng.integers(2)), self._ends if self._rng.integers(2) else ())

    def _sampler(self, temperature: int, banned: Collection[int] = ()) -> Sampler:
        params = SamplingParams(samplers=("temperature",), temperature=temperature, seed=int(self._rng.integers(2**32)))
        return Sampler(params, self._vocabulary, banned=tuple(banned))
