"""A worker's side of the pipe: it reads settings first, then requests, and answers each with one line.

Knows JSON; nothing about models.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

Answer = Callable[[Any], dict[str, Any]]
"""Makes the reply to a request."""


def serve(start: Callable[[Any], Answer]) -> None:
    """Answer until stdin ends. `start` gets the settings. Errors are replies, too: {"error": one line}."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not mix with the replies
    answer: Answer | None = None
    for line in sys.stdin:
        try:
            if answer:
                reply = answer(json.loads(line))
            else:
                answer = start(json.loads(line))
                reply = {}
        except Exception as error:
            reply = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        print(json.dumps(reply), file=replies, flush=True)


def timed(pieces: Iterable[object], count: Callable[[], int]) -> dict[str, Any]:
    """Consume all `pieces` of an answer, and time them from the first piece on. `count()` returns the tokens so far."""
    iterator = iter(pieces)
    next(iterator, None)
    begin, n_first = perf_counter(), count()
    for _ in iterator:
        pass
    seconds, n = perf_counter() - begin, count()
    if n == n_first:
        raise RuntimeError(f"the answer has {n} tokens, too few to time them")
    return {"n_generated": n, "tok_s": (n - n_first) / seconds}
