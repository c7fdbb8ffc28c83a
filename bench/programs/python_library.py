"""Python libraries as programs: one worker process each, for a whole case."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pymtp.benchmark.prompts import Prompt

from .case import Case, Memory, ProgramFailed, Sample
from .process import Process

BENCH = Path(__file__).resolve().parent.parent


class PythonLibrary:
    """Runs a module of `workers`. `settings` are added to the case's, `environment` to that of this process."""

    def __init__(self, name: str, module: str, case: Case, settings: dict[str, Any], **environment: str) -> None:
        command = [sys.executable, "-m", f"programs.workers.{module}"]
        log = case.logs / f"{name}.log"
        # Python imports from the current folder: in a checkout that would be a pymtp that is not built
        self._process = Process(command, log, {**os.environ, **environment}, folder=BENCH, talks=True)
        try:
            self._ask(
                {
                    "model": str(case.model),
                    "n_ctx": case.n_ctx,
                    "n_threads": case.n_threads,
                    "n_gpu_layers": case.n_gpu_layers,
                    "n_predict": case.n_predict,
                    "sampling": dict(case.sampling),
                    "forced_length": case.forced_length,
                    "cuda_shared_bytes": case.cuda_shared_bytes,
                    "split_mode": case.split_mode,
                    "tensor_split": case.tensor_split,
                    "rpc": case.rpc,
                    "cache_type": case.cache_type,
                    **settings,
                }
            )
        except BaseException:
            self.close()
            raise

    def answer(self, prompt: Prompt) -> Sample:
        """See Program."""
        return Sample(**self._ask(prompt.tokens))

    def memory(self) -> Memory:
        """See Program."""
        return self._process.memory()

    def close(self) -> None:
        """See Program."""
        self._process.close()

    def _ask(self, request: object) -> Any:
        reply = json.loads(self._process.ask(json.dumps(request)))
        if "error" in reply:
            raise ProgramFailed(f"{self._process.name}: {reply['error']}")
        return reply
