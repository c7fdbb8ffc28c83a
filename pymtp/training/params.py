"""What a training is asked for."""

from dataclasses import dataclass
from pathlib import Path

from pymtp.errors import require
from pymtp.heads.rows import type_id


@dataclass(frozen=True)
class TrainParams:
    """How a head is trained."""

    data: tuple[Path, ...] = ()
    """Texts (any name), folders of them, and prompts that the model answers itself (*.jsonl, a line each:
    {"prompt": "..."}, or {"messages": [...]}). Without any the model makes up what it is asked, if it has a chat
    template."""
    init: Path | None = None
    """A head of this form to begin with; None: the trunk's last layer."""
    minutes: float = 30
    """Time of all of it; at most 0.4 of it is spent on collecting rows."""
    n_rows: int = 200_000
    """Rows to learn from, a token and a hidden state each. They are kept on disk."""
    n_steps: int = 3
    """Drafts of a round that the loss is taken over."""
    type: str = "q8_0"
    """Of the head's matrices."""
    n_threads: int | None = None
    """None: one for each physical core."""
    device: str = "auto"
    """What PyTorch trains on: cpu, cuda, or auto."""
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.minutes > 0, "minutes", "above 0", self.minutes)
        require(self.n_rows >= 1000, "rows", "at least 1000", self.n_rows)
        require(1 <= self.n_steps <= 8, "steps", "between 1 and 8", self.n_steps)
        type_id(self.type, "type")
        require(self.device in ("auto", "cpu", "cuda"), "device", "auto, cpu or cuda", self.device)
