"""pymtp, through its public API."""

from __future__ import annotations

import ctypes
from typing import Any

from pymtp import Model, SamplingParams
from pymtp.acceptance.forced import Forced
from pymtp.binding.library import library_file

from .protocol import Answer, serve, timed


def start(settings: Any) -> Answer:
    """Load the model."""
    if settings["cuda_shared_bytes"]:
        cuda = ctypes.CDLL(str(library_file().with_name("libpymtp-ggml-cuda.so")))
        cuda.pymtp_cuda_limit_shared_memory(ctypes.c_size_t(settings["cuda_shared_bytes"]))
    model = Model(
        settings["model"],
        n_ctx=settings["n_ctx"],
        n_threads=settings["n_threads"],
        n_gpu_layers=settings["n_gpu_layers"],
        split_mode=settings["split_mode"],
        tensor_split=settings["tensor_split"],
        rpc=settings["rpc"],
        type_k=settings["cache_type"],
        type_v=settings["cache_type"],
        **draft_options(settings["draft"]),
    )
    sampling = SamplingParams(**settings["sampling"])
    options: dict[str, Any] = {"max_tokens": settings["n_predict"], "ignore_eos": True}
    if settings["forced_length"] is not None and isinstance(settings["draft"], int):
        options["forced"] = Forced.of_length(settings["forced_length"], settings["draft"])

    def answer(tokens: list[int]) -> dict[str, Any]:
        generation = model.generate(tokens, sampling=sampling, **options)
        reply = timed(generation, lambda: len(generation.tokens))
        stats = generation.stats
        reply["prompt_tok_s"] = stats.prompt_tok_s
        if model.draft_max:
            reply |= {"n_drafted": stats.drafted, "n_accepted": stats.accepted, "n_rounds": stats.rounds}
        return reply

    return answer


def draft_options(draft: str | int) -> dict[str, Any]:
    """Model's parameters for `draft`: "none", "auto" (the length adapts), or a number of tokens."""
    return {"draft": "none"} if draft == "none" else {"draft": "mtp", "draft_max": draft}


if __name__ == "__main__":
    serve(start)
