"""Trains a model for a given time on one GPU: python -m training.train SHARDS OUT --seconds 530.

Prose and code first; chat and templates in the last part, while the learning rate falls to zero. Everything is a
share of the time, so that a faster machine trains longer on the same plan. OUT gets weights.pt, and with
--checkpoint-seconds checkpoint.pt, from which --resume goes on.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .batches import IGNORED, KINDS, Batches, split
from .model import SHAPES, Model, Shape
from .muon import Muon

FIRST = {"prose": 0.45, "code": 0.55}
LAST = {"prose": 0.14, "code": 0.24, "chat": 0.16, "templates": 0.46}
LAST_FROM = 0.64
FALL_FROM = 0.45
"""Shares of the time: where the second mixture begins, and where the learning rate begins to fall."""
MOST_EPOCHS = {"chat": 2.0}
MUON_RATE, ADAM_RATE = 0.02, 3e-3
DRAFT_WEIGHTS = (0.3, 0.2, 0.15)
"""Of the losses of three draft steps, beside 1 for the trunk."""


@dataclass
class Progress:
    step: int = 0
    trained_s: float = 0.0
    n_tokens: int = 0


def rate_at(share: float, step: int) -> float:
    """The learning rate as a part of its highest, at a share of the time."""
    return min(1.0, (step + 1) / 100) * min(1.0, max(0.0, (1.0 - share) / (1.0 - FALL_FROM)) + 0.01)


def token_losses(states: Tensor, output: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of each token, (batch, rows); 0 where the target is not learned."""
    logits = F.linear(states, output.to(states.dtype)).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none").view(
        targets.shape
    )


class Trainer:
    def __init__(self, shape: Shape, shards: Path, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        torch.set_float32_matmul_precision("high")
        self.device = device
        self.batches = Batches(shards, device, seed=seed, most_epochs=MOST_EPOCHS)
        self.model = Model(shape).to(device)
        self.draft_weights = DRAFT_WEIGHTS if shape.has_head else ()
        on_gpu = device == "cuda"
        self.token_losses: Any = token_losses
        if on_gpu:
            self.model.compile_layers()
            self.token_losses = torch.compile(token_losses)
        matrices, others = [], []
        for name, weight in self.model.named_parameters():
            is_layers = weight.ndim == 2 and not name.startswith(("embd", "output")) and "attn.gate" not in name
            (matrices if is_layers else others).append(weight)
        self.others = others
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=on_gpu)
        self.progress = Progress()

    def losses(self, rows: Tensor, n_steps: int) -> tuple[list[Tensor], Tensor]:
        """Losses of all tokens, (batch, rows) each, of the trunk and of the draft steps; and the targets."""
        inputs, targets = split(rows)
        with torch.autocast(self.device, torch.bfloat16):
            states = self.model(inputs, n_steps)
            losses = [self.token_losses(state, self.model.output.weight, targets) for state in states]
        return losses, targets

    def step(self, share: float, n_rows: int) -> tuple[Tensor, list[int], Tensor]:
        """One update. Returns the trunk's losses (batch, rows), the rows of each kind, and what was learned."""
        rows, counts = self.batches.draw(FIRST if share < LAST_FROM else LAST, n_rows)
        losses, targets = self.losses(rows, len(self.draft_weights))
        learned = (targets != IGNORED).float()
        total = losses[0].sum() / learned.sum()
        for i, (weight, loss) in enumerate(zip(self.draft_weights, losses[1:], strict=True), 1):
            total = total + weight * loss[:, i:].sum() / learned[:, i:].sum()  # earlier rows see no hidden state
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.others, 1.0)
        rate = rate_at(share, self.progress.step)
        self.adam.param_groups[0]["lr"] = ADAM_RATE * rate
        self.adam.step()
        self.muon.step(MUON_RATE * rate, min(0.95, 0.85 + self.progress.step / 2000))
        self.model.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.n_tokens += targets.numel()
        return losses[0].detach(), counts, learned

    @torch.no_grad()
    def evaluate(self, n_rows: int) -> str:
        """Held-out loss by kind, and how often each draft step's most likely token is the trunk's."""
        texts = []
        for kind in KINDS:
            inputs, targets = split(self.batches.held_out(kind, n_rows))
            learned = targets != IGNORED
            with torch.autocast(self.device, torch.bfloat16):
                states = self.model(inputs, len(self.draft_weights))
                loss = token_losses(states[0], self.model.output.weight, targets).sum() / learned.sum()
                best = [self.model.output(state).argmax(-1) for state in states]
            agreed = [((b == best[0]) & learned)[:, i:].sum() / learned[:, i:].sum() for i, b in enumerate(best)][1:]
            texts.append(f"{kind} {loss:.3f} (" + " ".join(f"{a:.2f}" for a in agreed) + ")")
        return "held out: " + ", ".join(texts)

    def save(self, path: Path) -> None:
        state = {
            "shape": asdict(self.model.shape),
            "model": self.model.state_dict(),
            "adam": self.adam.state_dict(),
            "muon": self.muon.state(),
            "progress": asdict(self.progress),
            "taken": self.batches.taken,
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def restore(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])
        self.muon.restore(state["muon"])
        self.progress = Progress(**state["progress"])
        self.batches.taken = state["taken"]


class Report:
    """Prints losses by kind since the last line, now and then."""

    def __init__(self, device: str, every_s: float) -> None:
        self._every_s, self._last, self._tokens = every_s, time.monotonic(), 0
        self._sums = torch.zeros(len(KINDS), 2, device=device)

    def add(self, losses: Tensor, counts: list[int], learned: Tensor) -> None:
        first = 0
        for i, n in enumerate(counts):
            if n:
                self._sums[i, 0] += losses[first : first + n].sum()
                self._sums[i, 1] += learned[first : first + n].sum()
            first += n

    def due(self) -> bool:
        return time.monotonic() - self._last >= self._every_s

    def line(self, trainer: Trainer, share: float) -> str:
        losses = (self._sums[:, 0] / self._sums[:, 1]).tolist()
        tokens, seconds = trainer.progress.n_tokens - self._tokens, time.monotonic() - self._last
        self._sums.zero_()
        self._last, self._tokens = time.monotonic(), trainer.progress.n_tokens
        by_kind = ", ".join(f"{kind} {loss:.3f}" for kind, loss in zip(KINDS, losses, strict=True) if loss == loss)
        return (
            f"{share:.3f} step {trainer.progress.step}, {trainer.progress.n_tokens / 1e6:.0f}M tokens, "
            f"{tokens / seconds / 1e3:.0f}k/s, rate {rate_at(share, trainer.progress.step):.2f}: {by_kind}"
        )


def main() -> None:
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, required=True, help="of wall time, loading and compiling included")
    parser.add_argument("--shape", choices=SHAPES, default="embedded")
    parser.add_argument("--rows", type=int, default=64, help="of 1024 tokens, in a batch (default: 64)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report-seconds", type=float, default=15)
    parser.add_argument("--checkpoint-seconds", type=float, default=0, help="write checkpoint.pt so often")
    parser.add_argument("--resume", type=Path, help="go on from a checkpoint")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU; --device cpu trains a --shape tiny")
    given.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(SHAPES[given.shape], given.shards, given.device, given.seed)
    if given.resume:
        trainer.restore(given.resume)
    n_parameters = sum(weight.numel() for weight in trainer.model.parameters())
    sizes = {kind: f"{trainer.batches.tokens(kind) / 1e6:.1f}M" for kind in KINDS}
    print(f"{n_parameters / 1e6:.1f}M parameters, tokens {sizes}, {time.monotonic() - started:.0f} s", flush=True)
    before_s = trainer.progress.trained_s
    seconds = before_s + given.seconds
    report, saved = Report(given.device, given.report_seconds), time.monotonic()
    n_reports = 0
    while (share := (before_s + time.monotonic() - started) / seconds) < 1:
        losses, counts, learned = trainer.step(share, given.rows)
        report.add(losses, counts, learned)
        if report.due():
            print(report.line(trainer, share), flush=True)
            n_reports += 1
            if n_reports % 4 == 0:
                print(trainer.evaluate(given.rows), flush=True)
        if given.checkpoint_seconds and time.monotonic() - saved > given.checkpoint_seconds:
            trainer.progress.trained_s = before_s + time.monotonic() - started
            trainer.save(given.out / "checkpoint.pt")
            saved = time.monotonic()
    weights = {name: weight.cpu() for name, weight in trainer.model.state_dict().items()}
    torch.save({"shape": asdict(trainer.model.shape), "model": weights}, given.out / "weights.pt")
    print(report.line(trainer, 1.0), flush=True)
    print(trainer.evaluate(given.rows), flush=True)
    print({kind: f"{trainer.batches.epochs(kind):.2f} epochs" for kind in KINDS}, flush=True)


if __name__ == "__main__":
    main()
