"""A trained head in NumPy, a row at a time: what pymtp's graph of it is compared with."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class TrainedHead:
    """The head of a file that has one beside its trunk, or of a file of its own."""

    def __init__(self, path: Path, trunk: Path, *, n_rot: int, is_neox: bool, base: float = 10000.0) -> None:
        reader = gguf.GGUFReader(path)
        names = {tensor.name: np.array(tensor.data, np.float64) for tensor in reader.tensors}
        last = max(int(name.split(".")[1]) for name in names if name.startswith("blk."))
        prefix = f"blk.{last}."
        self._of = {name.removeprefix(prefix): values for name, values in names.items() if name.startswith(prefix)}
        shared = {tensor.name: np.array(tensor.data, np.float64) for tensor in gguf.GGUFReader(trunk).tensors}
        self._embedding = shared["token_embd.weight"]
        self._output = shared.get("output.weight", self._embedding)
        self._n_rot, self._is_neox, self._base = n_rot, is_neox, base
        architecture = reader.fields["general.architecture"].contents()
        self._size = reader.fields[f"{architecture}.attention.key_length"].contents()
        self._keys: list[Array] = []
        self._values: list[Array] = []

    def row(self, token: int, hidden: Array) -> tuple[Array, Array]:
        """The next position: the hidden state that is handed on, and logits."""
        of, n = self._of, len(self._keys)
        x = of["nextn.eh_proj.weight"] @ np.concatenate(
            [self._norm(self._embedding[token], "nextn.enorm"), self._norm(hidden, "nextn.hnorm")]
        )
        normed = self._norm(x, "attn_norm")
        q, k = (self._projected(normed, which, n) for which in "qk")
        n_value = of["attn_output.weight"].shape[1] // len(q)
        v = self._projected(normed, "v", n) if "attn_v.weight" in of else k[:, :n_value]
        self._keys.append(k)
        self._values.append(v)
        n_group = len(q) // len(k)
        keys, values = (np.repeat(np.stack(each), n_group, 1) for each in (self._keys, self._values))
        scores = np.einsum("hd,phd->hp", q, keys) * self._size**-0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        attended = np.einsum("hp,phd->hd", weights / weights.sum(-1, keepdims=True), values)
        x = x + of["attn_output.weight"] @ attended.ravel()
        normed = self._norm(x, "ffn_norm")
        gate, up = of["ffn_gate.weight"] @ normed, of["ffn_up.weight"] @ normed
        x = x + of["ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * up)
        state = self._norm(x, "nextn.shared_head_norm")
        return state, self._output @ state

    def _projected(self, x: Array, which: str, position: int) -> Array:
        """Heads of a row: (heads, size)."""
        made = (self._of[f"attn_{which}.weight"] @ x).reshape(-1, self._size)
        if which == "v":
            return made
        if f"attn_{which}_norm.weight" in self._of:
            made = self._norm(made, f"attn_{which}_norm")
        angles = position * self._base ** (-np.arange(0, self._n_rot, 2) / self._n_rot)
        first = 0 if "attn_v.weight" in self._of else self._size - self._n_rot
        turning = made[:, first : first + self._n_rot]
        a, b = np.split(turning, 2, -1) if self._is_neox else (turning[:, ::2], turning[:, 1::2])
        turned = a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)
        made[:, first : first + self._n_rot] = (
            np.concatenate(turned, -1) if self._is_neox else np.stack(turned, -1).reshape(a.shape[0], -1)
        )
        return made

    def _norm(self, x: Array, name: str) -> Array:
        scaled: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * self._of[f"{name}.weight"]
        return scaled
