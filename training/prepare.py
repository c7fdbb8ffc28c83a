"""Turns text into shards: python -m training.prepare CORPUS OUT [--packages FOLDER] [--templates 300000].

CORPUS has prose.txt and code.txt, documents divided by <|endoftext|>, and chat.jsonl, {"messages": ..., "source": ...}
lines. OUT gets tokenizer.json and, for each kind, rows to train on and 2 % that are held out. No conversation that
asks one of prompts.jsonl word for word is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from . import packages, templates
from .batches import NOT_LEARNED, ROW, write_shard
from .tokenizer import END, PAD, TURN, TURN_END, train_tokenizer

Messages = list[dict[str, str]]
LEFT_OUT = ("synthetic-persona-chat", "t0-", "flan-cot-sensemaking", "flan-cot-ecqa", "flan-cot-qasc", "flan-cot-aqua")
"""Sources of chat that teach little that people ask: personas, and questions about a text that is given."""
PARTS = {
    "tldr-pages": 0.4,
    "opentriviaqa": 0.5,
    "flan-cot-creak": 0.5,
    "wordnet": 0.6,
    "derived-story-continuation": 0.4,
}
"""Of large sources that repeat one pattern."""
HELD_OUT = 0.02
MOST_OF_A_TEMPLATE = 4
"""Short answers to common questions are generated again; without limit they would be most of all."""


def plain(text: str) -> str:
    """Letters and digits only, by which questions and documents are compared."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def excluded_questions() -> set[str]:
    lines = Path(__file__).with_name("prompts.jsonl").read_text().splitlines()
    return {plain(turn) for line in lines for turn in json.loads(line)["turns"][:1]}


def documents(path: Path) -> Iterator[str]:
    seen: set[bytes] = set()
    for document in path.read_text(encoding="utf-8").split(END):
        text = document.strip()
        digest = hashlib.sha1(plain(text).encode()).digest()
        if text and digest not in seen:
            seen.add(digest)
            yield text


def conversations(path: Path, chance: random.Random) -> Iterator[Messages]:
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:  # not splitlines: JSON may hold U+2028
        row = json.loads(line)
        if not row["source"].startswith(LEFT_OUT) and chance.random() < PARTS.get(row["source"], 1.0):
            yield row["messages"]


def clean(chats: Iterable[Messages], most: int = 1) -> Iterator[Messages]:
    """Each conversation `most` times at most, and none that asks what the evaluation asks."""
    excluded, seen = excluded_questions(), Counter[int]()
    for messages in chats:
        asked = {plain(message["content"]) for message in messages if message["role"] == "user"}
        digest = hash(tuple(message["content"] for message in messages))
        if seen[digest] < most and not asked & excluded:
            seen[digest] += 1
            yield messages


class Encoder:
    """Tokens of documents and of conversations; what the user says is read, but not learned."""

    def __init__(self, path: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(path))
        self._ids = {name: self._tokenizer.token_to_id(name) for name in (END, PAD, TURN, TURN_END)}

    def documents(self, texts: list[str]) -> np.ndarray:
        tokens: list[int] = []
        for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            tokens += [*encoding.ids, self._ids[END]]
        return np.array(tokens, np.uint16)

    def conversations(self, chats: list[Messages]) -> list[np.ndarray]:
        pieces = [f"{m['role']}\n" if i else m["content"].strip() for chat in chats for m in chat for i in (1, 0)]
        encodings = iter(self._tokenizer.encode_batch_fast(pieces, add_special_tokens=False))
        newline = self._tokenizer.encode("\n").ids
        encoded = []
        for chat in chats:
            tokens: list[int] = []
            for message in chat:
                role, content = next(encodings).ids, next(encodings).ids
                unread = 0 if message["role"] == "assistant" else NOT_LEARNED
                tokens += [token | NOT_LEARNED for token in (self._ids[TURN], *role)]
                tokens += [token | unread for token in (*content, self._ids[TURN_END])]
                tokens += [token | NOT_LEARNED for token in newline]
            encoded.append(np.array([*tokens, self._ids[END] | NOT_LEARNED], np.uint16))
        return encoded

    def padding(self) -> int:
        return self._ids[PAD] | NOT_LEARNED


def pack(chats: Iterable[np.ndarray], padding: int) -> np.ndarray:
    """Rows that begin with a conversation and end with one, or with padding."""
    rows, row, used = [], np.full(ROW, padding, np.uint16), 0
    for chat in chats:
        if used and used + len(chat) > ROW:
            rows.append(row)
            row, used = np.full(ROW, padding, np.uint16), 0
        chat = chat[:ROW]
        row[used : used + len(chat)] = chat
        used += len(chat)
    return np.stack([*rows, row])


def _encode(job: tuple[Path, str, list[str] | list[Messages]]) -> np.ndarray:
    path, kind, items = job
    encoder = Encoder(path)
    if kind == "text":
        tokens = encoder.documents(items)  # type: ignore[arg-type]
        return tokens[: len(tokens) // ROW * ROW].reshape(-1, ROW)
    return pack(encoder.conversations(items), encoder.padding())  # type: ignore[arg-type]


def write_kind(out: Path, kind: str, items: list[str] | list[Messages], chance: random.Random) -> None:
    chance.shuffle(items)
    n_held_out = max(8, int(len(items) * HELD_OUT))
    form = "text" if isinstance(items[0], str) else "chat"
    with Pool() as pool:
        for name, part in ((f"{kind}.held-out", items[:n_held_out]), (kind, items[n_held_out:])):
            size = max(200, len(part) // 64)
            jobs = [(out / "tokenizer.json", form, part[i : i + size]) for i in range(0, len(part), size)]
            rows = np.concatenate(pool.map(_encode, jobs))
            write_shard(out / f"{name}.xz", rows)
            n_bytes = (out / f"{name}.xz").stat().st_size
            print(f"{name}: {len(part)} items, {rows.size / 1e6:.2f}M tokens, {n_bytes / 1e6:.1f} MB", flush=True)


def as_text(messages: Messages) -> str:
    return "\n".join(message["content"] for message in messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--packages", type=Path, help="source archives of packages.txt")
    parser.add_argument("--templates", type=int, default=300_000, help="conversations to generate (default: 300000)")
    parser.add_argument("--prose-mb", type=float, default=1e9, help="take no more prose than this")
    parser.add_argument("--code-mb", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    given.out.mkdir(parents=True, exist_ok=True)
    prose, code = list(documents(given.corpus / "prose.txt")), list(documents(given.corpus / "code.txt"))
    if given.packages:
        more_prose, more_code = packages.read(given.packages)
        prose, code = prose + more_prose, code + more_code
    chance.shuffle(prose)
    chance.shuffle(code)
    prose, code = up_to(prose, given.prose_mb), up_to(code, given.code_mb)
    chat = list(clean(conversations(given.corpus / "chat.jsonl", chance)))
    generated = list(clean(templates.generate(given.templates, given.seed), most=MOST_OF_A_TEMPLATE))
    if not (given.out / "tokenizer.json").exists():
        sample = [chance.sample(items, len(items) // 6) for items in (prose, code)]
        talk = [
            as_text(m) for m in [*chance.sample(chat, len(chat) // 2), *chance.sample(generated, len(generated) // 8)]
        ]
        train_tokenizer([*sample[0], *sample[1], *talk], given.out / "tokenizer.json")
    for kind, items in (("prose", prose), ("code", code), ("chat", chat), ("templates", generated)):
        write_kind(given.out, kind, items, chance)


def up_to(texts: list[str], megabytes: float) -> list[str]:
    kept, size = [], 0
    for text in texts:
        size += len(text)
        if size > megabytes * 1e6:
            break
        kept.append(text)
    return kept


if __name__ == "__main__":
    main()
