"""The learning itself: batches, the loss over draft steps, what is held out, checkpoints."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from pymtp.errors import BackendError, ModelError, UnsupportedModel
from pymtp.gguf.model_file import ModelFile
from pymtp.training.collect import Progress, Rows
from pymtp.training.form import Array, Form, read_tensor
from pymtp.training.head import Head, Rotation, compare, divergence_gradient

if TYPE_CHECKING:
    from pymtp.training.run import TrainParams

_N_BATCH = {"cpu": 2048, "cuda": 8192}
"""Rows of a step: a GPU takes hardly longer for more."""
_HELD_OUT = 20
"""One text of so many is not learned from."""
_N_TESTED = 64
_N_FITTED = 50_000
_LR_MATRICES, _LR_REST = 0.005, 1e-3
_WARM_UP = 0.02
_ALONE = {"cpu": 0.6, "cuda": 0.3}
"""Share of the time in which the first draft step is learned alone, which costs a third."""
_EVERY = 30
"""Seconds between lines, and checkpoints."""


class Trunk(NamedTuple):
    """What the head shares with the trunk: (n_vocab, n_embd) each."""

    embedding: torch.Tensor
    output: torch.Tensor


def trunk_of(model: ModelFile, device: torch.device) -> Trunk:
    embedding, output = (model.tensors.get(f"{name}.weight") for name in ("token_embd", "output"))
    if embedding is None:
        raise UnsupportedModel(f"{model.path} has no token embedding; name a whole model")
    # BF16 where products of it are fast
    is_fast = device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()
    kind = torch.bfloat16 if is_fast else torch.float32
    shared = torch.tensor(read_tensor(embedding)).to(device, kind)
    return Trunk(shared, torch.tensor(read_tensor(output)).to(device, kind) if output else shared)


class _Texts:
    """Rows by texts, those that are learned from and those held out."""

    def __init__(self, rows: Rows) -> None:
        self._rows = np.memmap(rows.path, rows.kind, "r")
        ends = np.cumsum(rows.lengths)
        spans = [(int(end) - n, int(end)) for n, end in zip(rows.lengths, ends, strict=True) if n > 8]
        self.held_out = spans[::_HELD_OUT][:_N_TESTED]
        learned = [span for i, span in enumerate(spans) if i % _HELD_OUT]
        self._learned = sorted(learned, key=lambda span: span[1] - span[0])

    def pick(self, rng: np.random.Generator, n_rows: int) -> list[tuple[int, int]]:
        """Texts of about one length, of `n_rows` rows together."""
        first = int(rng.integers(len(self._learned)))
        n_texts = max(1, n_rows // (self._learned[first][1] - self._learned[first][0]))
        first = min(first, max(0, len(self._learned) - n_texts))
        return self._learned[first : first + n_texts]

    def some(self, n_rows: int) -> list[tuple[int, int]]:
        """Texts that are learned from, of about `n_rows` rows together."""
        n_texts = n_rows * len(self._learned) // max(1, sum(end - begin for begin, end in self._learned))
        return self._learned[:: max(1, len(self._learned) // max(1, n_texts))]

    def batch(self, spans: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens (texts, n), the trunk's states before and at each (texts, n + 1, n_embd), and lengths (texts,)."""
        n = max(end - begin for begin, end in spans)
        tokens = np.zeros((len(spans), n), np.int64)
        hidden = np.zeros((len(spans), n + 1, *self._rows.dtype["hidden"].shape), np.float16)
        for i, (begin, end) in enumerate(spans):
            tokens[i, : end - begin] = self._rows["token"][begin:end]
            hidden[i, 1 : end - begin + 1] = self._rows["hidden"][begin:end]
        return torch.from_numpy(tokens), torch.from_numpy(hidden), torch.tensor([end - begin for begin, end in spans])


def fitted(tensors: dict[str, Array], texts: _Texts, trunk: Trunk) -> dict[str, Array]:
    """A head whose layer adds nothing yet, and which joins token and hidden state as predicts the next state best.

    A least-squares fit of a few seconds, in the place of the first minutes of learning.
    """
    norm, n_embd = torch.tensor(tensors["nextn.shared_head_norm.weight"]), trunk.output.shape[1]
    products, answers, n = torch.zeros(2 * n_embd, 2 * n_embd), torch.zeros(2 * n_embd, n_embd), 0
    for span in texts.some(_N_FITTED):
        tokens, hidden, _ = texts.batch([span])
        hidden = hidden.float()
        read = torch.cat([_unit(trunk.embedding[tokens[0]].cpu().float()), _unit(hidden[0, :-1])], -1)
        products += read.T @ read
        answers += read.T @ _unit(hidden[0, 1:] / norm)
        n += len(read)
    joined = torch.linalg.solve(products + 1e-3 * n / n_embd * torch.eye(2 * n_embd), answers).T
    nothing = {name: np.zeros_like(tensors[name]) for name in ("attn_output.weight", "ffn_down.weight")}
    return {**tensors, **nothing, "nextn.eh_proj.weight": joined.contiguous().numpy()}


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


class _Learning:
    def __init__(self, head: Head, trunk: Trunk, n_steps: int) -> None:
        self.head, self._trunk, self._n_steps = head, trunk, n_steps
        self.device = trunk.output.device
        matrices = [p for p in head.parameters() if p.ndim == 2]
        rest = [p for p in head.parameters() if p.ndim != 2]
        self.optimizers = (
            torch.optim.Muon(matrices, lr=_LR_MATRICES, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=_LR_REST, weight_decay=0.0),
        )

    def _states(self, tokens: torch.Tensor, hidden: torch.Tensor, n_steps: int) -> torch.Tensor:
        """What the head says at each draft step, in the row of what it predicts: (n_steps, texts, n, n_embd)."""
        said, states = hidden[:, :-1], []
        cache: list[tuple[torch.Tensor, torch.Tensor]] = []
        kind = self._trunk.output.dtype
        with torch.autocast(self.device.type, kind, enabled=kind == torch.bfloat16):
            for step in range(n_steps):
                # row j takes the token at j + step; rows that have none take any, and do not count
                said = self.head(self._trunk.embedding[tokens.roll(-step, 1)], said, step, cache)
                states.append(said.roll(step, 1))
        return torch.stack(states)

    def step(self, batch: tuple[torch.Tensor, ...], share: float) -> None:
        """Learn from a batch, at this share of the time, the first draft steps, of which later ones count less."""
        pace = min(1.0, share / _WARM_UP) * (1 - share)
        for optimizer, lr in zip(self.optimizers, (_LR_MATRICES, _LR_REST), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr * pace
            optimizer.zero_grad()
        n_steps = 1 if share < _ALONE[self.device.type] else self._n_steps
        tokens, hidden, counted = self._moved(batch, n_steps)
        weights = 0.8 ** torch.arange(n_steps, device=self.device)[:, None, None]
        counts = counted / counted.sum((1, 2), keepdim=True) * weights / weights.sum()
        is_row = counted[0]
        states = self._states(tokens, hidden, n_steps)[:, is_row]
        with torch.no_grad():
            gradient = divergence_gradient(states, counts[:, is_row], hidden[:, 1:][is_row], self._trunk.output)
        states.backward(gradient)
        for optimizer in self.optimizers:
            optimizer.step()

    def _moved(self, batch: tuple[torch.Tensor, ...], n_steps: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens and hidden states of a batch on the device, and which rows of `_states` there are."""
        tokens, hidden, lengths = (each.to(self.device) for each in batch)
        at = torch.arange(tokens.shape[1], device=self.device)
        counted = torch.stack([(at >= step) & (at < lengths[:, None]) for step in range(n_steps)])
        return tokens, hidden.float(), counted

    def test(self, texts: _Texts) -> str:
        """What held-out texts show: the loss of all draft steps, and the share of drafts that would be accepted, of the
        rounds that drafted a position.
        """
        accepted, rounds = torch.zeros(self._n_steps), torch.zeros(self._n_steps)
        losses = []
        for first in range(0, len(texts.held_out), 8):
            tokens, hidden, counted = self._moved(texts.batch(texts.held_out[first : first + 8]), self._n_steps)
            with torch.no_grad():
                states = self._states(tokens, hidden, self._n_steps)
            agrees, entropies = compare(states.flatten(1, 2), hidden[:, 1:].flatten(0, 1), self._trunk.output)
            counted = counted.cpu()
            losses.append(entropies[counted.flatten(1)].mean())
            goes_on = counted[0]
            for step, agree in enumerate(agrees.view(counted.shape)):
                rounds[step] += goes_on.sum()
                goes_on = goes_on & agree
                accepted[step] += goes_on.sum()
                goes_on = goes_on.roll(1, 1) & counted[min(step + 1, self._n_steps - 1)]
        rates = " ".join(f"{rate:.3f}" for rate in accepted / rounds.clamp(min=1))
        return f"loss {torch.stack(losses).mean():.3f}, {rates} accepted by position in texts that were held out"


def learn(
    model: ModelFile,
    form: Form,
    tensors: dict[str, Array],
    rotation: Rotation,
    rows: Rows,
    folder: Path,
    params: "TrainParams",
    deadline: float,
    on_progress: Progress,
) -> dict[str, Array]:
    """Train a head on rows until it is time. Returns its tensors. Continues from a checkpoint in `folder`."""
    name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name if params.device == "auto" else params.device)
    torch.manual_seed(params.seed)
    torch.set_num_threads(params.n_threads or torch.get_num_threads())
    texts, saved = _Texts(rows), folder / "checkpoint.pt"
    try:
        trunk = trunk_of(model, device)
        if not params.init and not saved.exists():
            tensors = fitted(tensors, texts, trunk)
        learning = _Learning(Head(form, tensors, rotation).to(device), trunk, params.n_steps)
        _learn_until(deadline, learning, texts, saved, on_progress)
    except torch.OutOfMemoryError:
        raise BackendError("the GPU has no memory left; free some and repeat, or use --device cpu") from None
    return learning.head.tensors()


def _learn_until(deadline: float, learning: _Learning, texts: _Texts, saved: Path, on_progress: Progress) -> None:
    """Continue from what is `saved`, and save what was learned now and then, and at a Ctrl-C."""
    spent, budget = _load(saved, learning), deadline - time.monotonic()
    begin = time.monotonic() - spent
    if spent:
        on_progress(f"continues after {spent:.0f} s of learning")
    rng, said = np.random.default_rng(int(spent)), begin + spent
    try:
        while (now := time.monotonic()) < deadline:
            batch = texts.batch(texts.pick(rng, _N_BATCH[learning.device.type]))
            learning.step(batch, (now - begin) / (budget + spent))
            if now > said + min(_EVERY, (budget + spent) / 10):
                on_progress(f"{learning.test(texts)}, {deadline - now:.0f} s left")
                _save(saved, learning, now - begin)
                said = time.monotonic()
        on_progress(f"done: {learning.test(texts)}")
    except KeyboardInterrupt:
        _save(saved, learning, time.monotonic() - begin)
        on_progress(f"{saved}: what was learned; the same command continues")
        raise


def _save(path: Path, learning: _Learning, spent: float) -> None:
    state = [spent, learning.head.state_dict(), *(each.state_dict() for each in learning.optimizers)]
    partial = path.with_suffix(".incomplete")
    try:
        torch.save(state, partial)
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        raise ModelError(f"{path}: cannot be written ({error}); free some room and repeat the command") from error


def _load(path: Path, learning: _Learning) -> float:
    """Seconds that were spent on what is continued; 0: it begins."""
    if not path.exists():
        return 0.0
    try:
        spent, head, *optimizers = torch.load(path, weights_only=True, map_location=learning.device)
        learning.head.load_state_dict(head)
        for optimizer, state in zip(learning.optimizers, optimizers, strict=True):
            optimizer.load_state_dict(state)
        return float(spent)
    except torch.OutOfMemoryError:
        raise
    except (EOFError, UnpicklingError, RuntimeError, ValueError) as error:
        raise ModelError(f"{path} is damaged, or of another head; delete it and repeat the command") from error
