"""The programs that can be compared, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .case import Case, Program
from .http_server import ExampleServer, LlamaServer
from .one_shot import LlamaBench, LlamaCli, SpeculativeSimple
from .python_library import PythonLibrary


@dataclass(frozen=True)
class Entry:
    """A program: its title in tables, and how it is started for a case."""

    title: str
    start: Callable[[Case], Program]
    """Raises ProgramFailed."""


def _pymtp(name: str, draft: str | None) -> Callable[[Case], Program]:
    """`draft` None: the case's number of tokens."""
    return lambda case: PythonLibrary(name, "pymtp_worker", case, {"draft": draft or case.draft_max})


CATALOGUE = {
    "pymtp": Entry("pymtp", _pymtp("pymtp", None)),
    "pymtp-auto": Entry("pymtp, length adapts", _pymtp("pymtp-auto", "auto")),
    "pymtp-plain": Entry("pymtp plain", _pymtp("pymtp-plain", "none")),
    "server": Entry("llama-server draft-mtp", lambda case: LlamaServer(case, drafts=True)),
    "server-probabilistic": Entry(
        "llama-server draft-mtp, probabilistic", lambda case: LlamaServer(case, drafts=True, sampling="probabilistic")
    ),
    "server-plain": Entry("llama-server plain", lambda case: LlamaServer(case, drafts=False)),
    "cli": Entry("llama-cli draft-mtp", lambda case: LlamaCli(case, drafts=True)),
    "cli-plain": Entry("llama-cli plain", lambda case: LlamaCli(case)),
    "speculative-simple": Entry("llama-speculative-simple", lambda case: SpeculativeSimple(case)),
    "bench": Entry("llama-bench plain", lambda case: LlamaBench(case)),
    "python-llama": Entry(
        "llama-cpp-python Llama",
        lambda case: PythonLibrary("llama-cpp-python", "llama_worker", case, {}, LLAMA_CPP_LIB_PATH=str(case.programs)),
    ),
    "python-server": Entry("llama-cpp-python server", ExampleServer),
}
DEFAULT = ("pymtp", "pymtp-auto", "pymtp-plain", "server", "server-plain")
PLAIN, DRAFT_MTP = "server-plain", "server"
"""The programs with which the others' speed is compared."""
