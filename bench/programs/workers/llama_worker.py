"""llama-cpp-python's Llama, as its users call it: a streamed completion. It drafts with no heads, and stops where the
model does.
"""

from __future__ import annotations

from typing import Any

from llama_cpp import Llama

from .protocol import Answer, serve, timed


def start(settings: Any) -> Answer:
    """Load the model."""
    llama = Llama(
        settings["model"],
        n_ctx=settings["n_ctx"],
        n_threads=settings["n_threads"],
        n_gpu_layers=settings["n_gpu_layers"],
        verbose=False,
    )

    def answer(tokens: list[int]) -> dict[str, Any]:
        llama.reset()  # type: ignore[no-untyped-call]
        chunks = llama.create_completion(tokens, max_tokens=settings["n_predict"], stream=True, **settings["sampling"])
        # the newest token is not in the context yet
        return timed(chunks, lambda: llama.n_tokens - len(tokens) + 1)

    return answer


if __name__ == "__main__":
    serve(start)
