"""How queries and keys of a head know positions: what the engine's rotation makes of them, as a table."""

import numpy as np
import torch
from torch import Tensor, nn

from pymtp.engine.session import Session


class Rotation(nn.Module):
    """Multiplies each number of a query or key, and adds a multiple of another one."""

    cos: Tensor
    """What a number is multiplied by, (n_positions, n_head_k)."""
    sin: Tensor
    """What the other one is."""
    partners: Tensor
    """Which one that is, (n_head_k,)."""

    def __init__(self, cos: Tensor, sin: Tensor, partners: Tensor) -> None:
        super().__init__()
        for name, values in (("cos", cos), ("sin", sin), ("partners", partners)):
            self.register_buffer(name, values, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x: (..., n_tokens, n_head_k); positions: (n_tokens,)."""
        cos, sin = (table[positions].to(x.dtype) for table in (self.cos, self.sin))
        return x * cos + x[..., self.partners] * sin


def rotation_of(session: Session, n_head_k: int, n_positions: int) -> Rotation:
    """The rotation of the head in a session, at the first positions."""
    each = np.eye(n_head_k, dtype=np.float32)
    turned = [session.rotated(position, each) for position in range(n_positions)]
    cos = np.stack([rows.diagonal() for rows in turned])
    partners = np.abs(turned[1] - np.diag(cos[1])).argmax(0)
    sin = np.stack([rows[partners, np.arange(n_head_k)] for rows in turned])
    sin[:, partners == np.arange(n_head_k)] = 0
    return Rotation(*map(torch.tensor, (cos, sin, partners)))
