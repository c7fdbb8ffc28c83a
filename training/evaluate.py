"""Answers of models to prompts.jsonl, for a person to read: python -m training.evaluate MODEL.gguf [OTHER.gguf].

Each model samples as its GGUF recommends. Prints Markdown; judges nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pymtp import Model


def answers(model: Model, turns: list[str], max_tokens: int) -> list[str]:
    messages: list[dict[str, str]] = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        messages.append({"role": "assistant", "content": "".join(model.chat(messages, max_tokens=max_tokens))})
    return [message["content"] for message in messages[1::2]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--prompts", type=Path, default=Path(__file__).with_name("prompts.jsonl"))
    parser.add_argument("--max-tokens", type=int, default=300)
    given = parser.parse_args()
    items = [json.loads(line) for line in given.prompts.read_text(encoding="utf-8").splitlines()]
    collected = []
    for path in given.models:
        with Model(path) as model:
            collected.append([answers(model, item["turns"], given.max_tokens) for item in items])
    for number, (item, *answered) in enumerate(zip(items, *collected, strict=True), 1):
        print(f"## {number}. {item['category']}\n")
        for i, turn in enumerate(item["turns"]):
            print("\n".join(f"> {line}" for line in turn.splitlines()), end="\n\n")
            for path, replies in zip(given.models, answered, strict=True):
                print(f"**{path.stem}**\n\n{replies[i].strip()}\n")


if __name__ == "__main__":
    main()
