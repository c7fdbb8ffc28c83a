"""llama.cpp's programs that answer one prompt and exit. Speeds are from their own timings."""

from __future__ import annotations

import json
import re
from contextlib import suppress

from pymtp.benchmark.prompts import Prompt

from .case import Case, Memory, ProgramFailed, Sample
from .http_server import context_flags, draft_flags
from .process import Process

ANSWER_S = 300
N_TRIES = 3


class _OneShot:
    """One process for each prompt."""

    name: str

    def __init__(self, case: Case, *, drafts: bool = False) -> None:
        self._case = case
        self._drafts = drafts
        self._log = case.logs / f"{self.name}-{'draft-mtp' if drafts else 'plain'}.log"
        self._memory = Memory(None, None)

    def memory(self) -> Memory:
        """See Program. Of the latest process; unknown on GPUs, because it has ended."""
        return self._memory

    def close(self) -> None:
        """See Program."""

    def _run(self, arguments: list[object]) -> str:
        process = Process([self._case.programs / self.name, *arguments], self._log)
        try:
            output = process.finish(ANSWER_S)
            self._memory = Memory(process.memory().host_bytes, None)
        finally:
            process.close()
        return output + process.log()

    def _prompt_flags(self, prompt: Prompt) -> list[object]:
        path = self._log.with_suffix(".prompt")
        path.write_text(prompt.text + "\n", "utf-8")  # the programs remove one newline at the end
        case = self._case
        flags: list[object] = ["-m", case.model, *context_flags(case), "-f", path, "-n", case.n_predict, "--ignore-eos"]
        for name, value in case.sampling.items():
            flags += ["--temp" if name == "temperature" else "--" + name.replace("_", "-"), value]
        return flags + (draft_flags(case) if self._drafts else [])

    def _match(self, pattern: str, output: str) -> re.Match[str]:
        found = re.search(pattern, output)
        if not found:
            raise ProgramFailed(f"{self._log.stem}: its output has no timings; its log: {self._log}")
        return found


class LlamaCli(_OneShot):
    """llama-cli: a chat with a server inside. Its chat template here copies the message, so the prompt is unchanged."""

    name = "llama-cli"

    def answer(self, prompt: Prompt) -> Sample:
        """See Program."""
        flags = self._prompt_flags(prompt)
        flags += ["--single-turn", "--jinja", "--chat-template", "{{ messages[0].content }}", "--show-timings"]
        if self._drafts and self._case.forced_length is not None:
            flags += ["--spec-synth-len", self._case.forced_length]
        return self.sample(self._run(flags))

    def sample(self, output: str) -> Sample:
        """The figures in its output."""
        found = self._match(r"\[ Prompt: ([\d.]+) t/s \| Generation: ([\d.]+) t/s \]", output)
        return Sample(self._case.n_predict, float(found[2]), float(found[1]))


class SpeculativeSimple(_OneShot):
    """llama-speculative-simple. Its acceptance cannot be forced."""

    name = "llama-speculative-simple"

    def __init__(self, case: Case) -> None:
        if case.forced_length is not None:
            raise ProgramFailed("llama-speculative-simple: it cannot force acceptance")
        super().__init__(case, drafts=True)

    def answer(self, prompt: Prompt) -> Sample:
        """See Program. Tries again if the process exited before its log thread had written the timings."""
        for _ in range(N_TRIES - 1):
            with suppress(ProgramFailed):
                return self.sample(self._run(self._prompt_flags(prompt)))
        return self.sample(self._run(self._prompt_flags(prompt)))

    def sample(self, output: str) -> Sample:
        """The figures in its log. All its tokens are decoded after the prompt, including the first."""
        prompt_tok_s = self._match(r"encoded +\d+ tokens in +[\d.]+ seconds, speed: +([\d.]+) t/s", output)
        decoded = self._match(r"decoded +(\d+) tokens in +[\d.]+ seconds, speed: +([\d.]+) t/s", output)
        n, accepted = int(decoded[1]), int(self._match(r"n_accept +=\s+(\d+)", output)[1])
        return Sample(
            n_generated=n,
            tok_s=float(decoded[2]),
            prompt_tok_s=float(prompt_tok_s[1]),
            n_drafted=int(self._match(r"n_drafted +=\s+(\d+)", output)[1]),
            n_accepted=accepted,
            n_rounds=n - accepted,
        )


class LlamaBench(_OneShot):
    """llama-bench: decodes random tokens after as many as the prompt has, without sampling."""

    name = "llama-bench"

    def answer(self, prompt: Prompt) -> Sample:
        """See Program."""
        case = self._case
        arguments: list[object] = ["-m", case.model, "-t", case.n_threads, "-ngl", case.n_gpu_layers, "-o", "json"]
        arguments += ["-p", 0, "-n", case.n_predict, "-d", len(prompt.tokens), "-r", 1]
        return self.sample(self._run(arguments))

    def sample(self, output: str) -> Sample:
        """The figures in its JSON, which its log may follow."""
        found, _ = json.JSONDecoder().raw_decode(output[self._match(r"^\[", output).start() :])
        return Sample(n_generated=found[0]["n_gen"], tok_s=found[0]["avg_ts"])
