"""The head in PyTorch: what native/src/heads/head-block.cpp computes, over all positions and draft steps at once.

How queries and keys know positions is a table of what the engine's rotation makes of them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pymtp.engine.session import Session
from pymtp.training.form import Array, Form


class Rotation(NamedTuple):
    """How positions rotate queries and keys: each number is multiplied, and a multiple of another one is added."""

    cos: Tensor
    """What a number is multiplied by, (n_positions, n_head_k)."""
    sin: Tensor
    """What the other one is."""
    partners: Tensor
    """Which one that is, (n_head_k,)."""


def rotation_of(session: Session, n_head_k: int, n_positions: int) -> Rotation:
    """The rotation of the head in a session, at the first positions."""
    each = np.eye(n_head_k, dtype=np.float32)
    turned = [session.rotated(position, each) for position in range(n_positions)]
    cos = np.stack([rows.diagonal() for rows in turned])
    partners = np.abs(turned[1] - np.diag(cos[1])).argmax(0)
    sin = np.stack([rows[partners, np.arange(n_head_k)] for rows in turned])
    sin[:, partners == np.arange(n_head_k)] = 0
    return Rotation(*map(torch.tensor, (cos, sin, partners)))


class Head(nn.Module):
    """`tensors`: by their names in the layer."""

    def __init__(self, form: Form, tensors: Mapping[str, Array], rotation: Rotation) -> None:
        super().__init__()
        self.form = form
        for name, table in rotation._asdict().items():
            self.register_buffer(name, table, persistent=False)
        self._names = {name: name.replace(".", "_") for name in tensors}
        for name, values in tensors.items():
            self.register_parameter(self._names[name], nn.Parameter(torch.tensor(values)))

    def tensors(self) -> dict[str, Array]:
        """By their names in the layer, float32."""
        found = self.state_dict()
        return {name: found[own].float().cpu().numpy() for name, own in self._names.items()}

    def forward(self, embedding: Tensor, hidden: Tensor, step: int, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        """What a draft step says at each row: (texts, n_tokens, n_embd), which is handed on and scores the vocabulary.

        Row j of step s is at position j + s. It sees the first step's keys up to row j, and those of its own later
        steps. `cache`: keys and values of the steps before, to which this step adds its own.
        """
        x = F.linear(
            torch.cat([self._norm(embedding, "nextn.enorm"), self._norm(hidden, "nextn.hnorm")], -1),
            self._of("nextn.eh_proj"),
        )
        x = x + self._attention(self._norm(x, "attn_norm"), step, cache)
        y = self._norm(x, "ffn_norm")
        y = F.silu(F.linear(y, self._of("ffn_gate"))) * F.linear(y, self._of("ffn_up"))
        return self._norm(x + F.linear(y, self._of("ffn_down")), "nextn.shared_head_norm")

    def _attention(self, x: Tensor, step: int, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        form, n = self.form, x.shape[1]
        positions = torch.arange(n, device=x.device) + step
        keys = self._rotated(self._heads(x, "k", form.n_kv), positions)
        cache.append((keys, keys[..., : form.n_head_v] if form.value_in_key else self._heads(x, "v", form.n_kv)))
        # (texts, n_kv, heads of a key, n, n_head_k)
        queries = self._rotated(self._heads(x, "q", form.n_head), positions).unflatten(1, (form.n_kv, -1))
        later = torch.full((n, n), -torch.inf, device=x.device).triu(1)
        scores = (queries.flatten(2, 3) @ cache[0][0].transpose(-1, -2)).unflatten(2, (-1, n))
        own = [(queries * keys[:, :, None]).sum(-1, keepdim=True) for keys, _ in cache[1:]]
        scale = form.n_head_k**-0.5
        weights = torch.cat([scores.float() * scale + later, *(each.float() * scale for each in own)], -1)
        weights = weights.softmax(-1).to(x.dtype)
        out = (weights[..., :n].flatten(2, 3) @ cache[0][1]).unflatten(2, (-1, n))
        for i, (_, values) in enumerate(cache[1:]):
            out = out + weights[..., n + i, None] * values[:, :, None]
        return F.linear(out.flatten(1, 2).transpose(1, 2).flatten(2), self._of("attn_output"))

    def _heads(self, x: Tensor, which: str, n_head: int) -> Tensor:
        bias = getattr(self, f"attn_{which}_bias", None)
        x = F.linear(x, self._of(f"attn_{which}"), bias).unflatten(-1, (n_head, -1)).transpose(1, 2)
        return self._norm(x, f"attn_{which}_norm") if hasattr(self, f"attn_{which}_norm_weight") else x

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """x: (..., n_tokens, n_head_k); positions: (n_tokens,)."""
        cos, sin = (self.get_buffer(name)[positions].to(x.dtype) for name in ("cos", "sin"))
        return x * cos + x[..., self.get_buffer("partners")] * sin

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self._of(name).float(), self.form.eps)

    def _of(self, name: str) -> Tensor:
        weight: Tensor = getattr(self, name.replace(".", "_") + "_weight")
        return weight


def divergence_gradient(states: Tensor, counts: Tensor, trunk: Tensor, output: Tensor) -> Tensor:
    """The gradient, by the states, of how far a head's distributions are from the trunk's: of their cross-entropies.

    Takes the head's states of all draft steps, (n_steps, n, n_embd), how much each row of them counts (n_steps, n), the
    trunk's states (n, n_embd) that they should equal, and the output matrix (n_vocab, n_embd), which is not learned.
    Goes by pieces of rows and keeps no logits.
    """
    gradient = torch.empty_like(states)
    for piece in _pieces(trunk, output):
        wanted = _logits(trunk[piece], output).softmax(-1)
        for step, of_step in enumerate(states):
            missed = _logits(of_step[piece], output).softmax(-1).sub_(wanted).mul_(counts[step, piece, None])
            gradient[step, piece] = (missed.to(output.dtype) @ output).to(gradient.dtype)
    return gradient


def compare(states: Tensor, trunk: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """Where the head's most likely token is the trunk's, and the cross-entropies: (n_steps, n) each, of the same."""
    shape = states.shape[:2]
    agrees, entropies = torch.empty(shape, dtype=torch.bool), torch.empty(shape)
    for piece in _pieces(trunk, output):
        wanted = _logits(trunk[piece], output)
        for step, of_step in enumerate(states):
            said = _logits(of_step[piece], output)
            agrees[step, piece] = (said.argmax(-1) == wanted.argmax(-1)).cpu()
            entropies[step, piece] = -(wanted.softmax(-1) * said.log_softmax(-1)).sum(-1).cpu()
    return agrees, entropies


def _logits(states: Tensor, output: Tensor) -> Tensor:
    return (states.to(output.dtype) @ output.T).float()


def _pieces(rows: Tensor, output: Tensor) -> list[slice]:
    """Rows at a time: what a CPU's caches hold, or a GPU's memory without effort."""
    n = max(1, (2**27 if output.is_cuda else 2**21) // len(output))
    return [slice(begin, begin + n) for begin in range(0, len(rows), n)]
