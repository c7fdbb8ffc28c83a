"""Does llama.cpp compute what the trainer computes? python -m training.parity [weights.pt]

Exports in F32, and compares the logits of the trunk and of the first draft step with llama.cpp's own contexts: with
trained weights, or with random ones for a tiny shape.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
import torch
from llama_cpp import llama_cpp_ext

from .export import write_gguf
from .model import SHAPES, Model, Shape
from .tokenizer import END, PAD, THINKING, TURN, TURN_END

N_ROWS = 300
TOLERANCE = 1e-4
"""Of the largest difference, relative to the largest logit."""


def random_model() -> Model:
    torch.manual_seed(1)
    model = Model(SHAPES["tiny"])
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.1)
        else:
            torch.nn.init.uniform_(weight, 0.7, 1.3)
    return model


def vocabulary(path: Path, n_vocab: int) -> Path:
    """A vocabulary of the right size without meaning."""
    special = [END, TURN, TURN_END, PAD, *THINKING]
    added = [{"content": name, "id": i, "special": i < 4} for i, name in enumerate(special)]
    vocab = {f"t{i}": i for i in range(len(special), n_vocab)}
    path.write_text(json.dumps({"model": {"vocab": vocab, "merges": ["a b"]}, "added_tokens": added}))
    return path


class Reference:
    """llama.cpp's trunk and MTP contexts on one GGUF."""

    def __init__(self, path: Path, n_vocab: int) -> None:
        params = llama_cpp.llama_model_default_params()
        params.load_mtp = True
        self._n_vocab = n_vocab
        self._model = llama_cpp.llama_model_load_from_file(bytes(path), params)
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self._batch = llama_cpp.llama_batch_init(N_ROWS, 0, 1)

    def _context(self, kind: int) -> object:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = params.n_outputs_max = 512
        params.ctx_type, params.type_k, params.type_v, params.flash_attn_type = kind, 0, 0, 0
        context = llama_cpp.llama_init_from_model(self._model, params)
        assert context
        llama_cpp_ext.llama_set_embeddings_nextn(context, True, kind == 1)
        return context

    def _decode(self, context: object) -> np.ndarray:
        if llama_cpp.llama_decode(context, self._batch):
            raise SystemExit("llama.cpp could not decode")
        rows = [llama_cpp.llama_get_logits_ith(context, i) for i in range(N_ROWS)]
        return np.stack([np.ctypeslib.as_array(row, (self._n_vocab,)).copy() for row in rows])

    def logits(self, tokens: list[int], n_embd: int) -> tuple[np.ndarray, np.ndarray]:
        """(N_ROWS, n_vocab) each: of the trunk, and of the first draft step."""
        for i, token in enumerate(tokens):
            self._batch.token[i], self._batch.pos[i], self._batch.n_seq_id[i] = token, i, 1
            self._batch.seq_id[i][0], self._batch.logits[i] = 0, 1
        self._batch.n_tokens = N_ROWS
        target, draft = self._context(0), self._context(1)
        trunk = self._decode(target)
        hidden = np.ctypeslib.as_array(llama_cpp_ext.llama_get_embeddings_nextn(target), (N_ROWS, n_embd))
        before = np.concatenate([np.zeros((1, n_embd), np.float32), hidden[:-1]])
        self._batch.embd = before.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        return trunk, self._decode(draft)


def compare(model: Model, folder: Path) -> list[float]:
    """The largest differences of the trunk and of the first draft step, relative to the largest logit."""
    shape = model.shape
    torch.manual_seed(2)
    tokens = torch.randint(10, shape.n_vocab - 10, (1, N_ROWS))
    with torch.no_grad():
        expected = [model.output(state)[0].numpy() for state in model(tokens, 1)]
    path = folder / "parity.gguf"
    write_gguf(path, shape, model.state_dict(), vocabulary(folder / "tokenizer.json", shape.n_vocab), "f32", "parity")
    computed = Reference(path, shape.n_vocab).logits(tokens[0].tolist(), shape.n_embd)
    return [float(abs(a - b).max() / abs(a).max()) for a, b in zip(expected, computed, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path, nargs="?")
    given = parser.parse_args()
    model = random_model()
    if given.weights:
        saved = torch.load(given.weights, map_location="cpu", weights_only=True)
        model = Model(Shape(**saved["shape"]))
        model.load_state_dict(saved["model"])
    with tempfile.TemporaryDirectory() as folder:
        trunk, draft = compare(model.float().eval(), Path(folder))
    print(f"largest difference, relative to the largest logit: trunk {trunk:.1e}, first draft step {draft:.1e}")
    if max(trunk, draft) > TOLERANCE:
        raise SystemExit(f"more than {TOLERANCE}")


if __name__ == "__main__":
    main()
