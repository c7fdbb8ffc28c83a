"""A training from a model to the file with its head, and what it is asked for.

Owns the order of things, what is shown, and what is kept.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from pymtp.engine.context import ContextParams
from pymtp.errors import ModelError, UnsupportedModel, explained, require
from pymtp.gguf.model_file import ModelFile
from pymtp.heads.files import check_target, default_target
from pymtp.heads.quantize import check_type
from pymtp.model import Model
from pymtp.training.collect import N_TEXTS, N_TOKENS, Collector, Progress, Rows, Source
from pymtp.training.form import Form, first_tensors, read_head, write_head

_COLLECTING = 0.4
"""Of the time, at most."""


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
    """Minutes in all, of which at most 40 % go to collecting rows."""
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
        require(0 < self.minutes < 1e6, "minutes", "above 0, and less than a million", self.minutes)
        require(self.n_rows >= 1000, "n_rows", "at least 1000", self.n_rows)
        require(1 <= self.n_steps <= 8, "n_steps", "between 1 and 8", self.n_steps)
        check_type(self.type, "type")
        require(self.device in ("auto", "cpu", "cuda"), "device", "auto, cpu or cuda", self.device)


def train_head(
    path: str | Path,
    target: str | Path | None = None,
    *,
    params: TrainParams = TrainParams(),  # noqa: B008  # frozen
    force: bool = False,
    on_progress: Progress = lambda line: None,
) -> Path:
    """Train a head for the model at `path`, which has none, and write it to `target` (mtp-*.gguf next to the model).

    What was collected and learned stays in a folder *.training next to it: the same call continues from there. Returns
    the file. Raises ModelError for files that cannot be used, UnsupportedModel for models that cannot have such a head.
    """
    try:
        from pymtp.training.head import rotation_of
        from pymtp.training.learn import learn
    except ImportError:
        raise UnsupportedModel("training needs PyTorch; pip install 'pymtp-gguf[train]'") from None
    model, out = ModelFile(Path(path)), Path(target) if target else default_target(path)
    if model.n_heads:
        raise UnsupportedModel(f"{path} has MTP heads; name a model without them")
    form = Form(model)
    check_target(out, [shard.path for shard in model.shards], force=force)
    folder = out.with_name(f"{out.stem}-{model.trunk_id}.training")
    begin = time.monotonic()
    tensors = read_head(params.init, form) if params.init else first_tensors(model, form, params.seed)
    with explained(f"make {folder}", "name another file (-o)", ModelError):
        folder.mkdir(exist_ok=True)
    with _held(folder):
        rows = Rows(folder, form.n_embd)
        needed = rows.check_room(params.n_rows) / 2**20
        on_progress(f"{folder}: up to {needed:.0f} MiB more for rows; delete it when the head is good enough")
        first = folder / "mtp-first.gguf"
        write_head(first, model, tensors, "f32")
        context = ContextParams(
            n_ctx=N_TOKENS + 16, n_seq_max=N_TEXTS + 1, n_threads=params.n_threads, n_ubatch=2 * N_TOKENS
        )
        with Model(path, draft_model=first, draft="mtp", draft_max=1, context=context) as loaded:
            rotation = rotation_of(loaded.session, form.n_head_k, N_TOKENS + params.n_steps)
            collector = Collector(loaded, rows, Source(loaded, params.data, params.seed + len(rows)))
            collector.run(params.n_rows, begin + _COLLECTING * 60 * params.minutes, on_progress)
        if len(rows) < 1000:
            raise ModelError(f"{len(rows)} rows are too few to learn from; give it more time (--minutes) or more data")
        learned = learn(model, form, tensors, rotation, rows, folder, params, begin + 60 * params.minutes, on_progress)
        write_head(out, model, learned, params.type)
        (folder / "checkpoint.pt").unlink(missing_ok=True)
    return out


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder for one training at a time, until its process ends at the latest."""
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ModelError(f"another training uses {folder}; wait for its end, or name another file (-o)") from None
    except (OSError, NotImplementedError):  # a file system that has no locks
        pass
    try:
        yield
    finally:
        lock.release()
