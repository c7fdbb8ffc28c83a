"""python convert.py LLAMA_CPP CHECKPOINT: llama.cpp's own converter on a tiny checkpoint, in F32.

Runs in a process of its own, because the converter comes with another version of the gguf package. Tiny checkpoints
have no tokenizer: the vocabulary is that of the tests' models.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Converted(NamedTuple):
    """What the converter makes of a checkpoint: all of it, and with --no-mtp and --mtp."""

    whole: Path
    trunk: Path
    heads: Path


def convert(llama_cpp: Path, checkpoint: Path) -> Converted:
    """Convert `checkpoint` with the converter below `llama_cpp`, into its folder."""
    command = [sys.executable, __file__, str(llama_cpp), str(checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return files(checkpoint)


def files(checkpoint: Path) -> Converted:
    return Converted(*(checkpoint / name for name in ("whole.gguf", "trunk.gguf", "mtp-heads.gguf")))


def main(llama_cpp: str, checkpoint: str) -> None:
    here = Path(__file__).parent
    sys.path[:0] = [f"{llama_cpp}/gguf-py", llama_cpp, str(here.parent)]
    sys.path.remove(str(here))
    import conversion
    import gguf

    from random_gguf.writer import add_vocabulary

    folder = Path(checkpoint)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    # the published form, as users' converters find it: transformers would rename keys
    conversion.ModelBase.load_hparams = staticmethod(lambda *_, **__: dict(config))
    model: Any = conversion.get_model_class(config["architectures"][0])
    if config["architectures"][0] in DROPPED:
        model = with_head(model, config)
    if config.get("use_ordered_embeddings"):
        model = with_chosen_vocabulary(model)
    model.set_vocab = lambda self: add_vocabulary(self.gguf_writer)
    out = files(folder)
    model(folder, gguf.LlamaFileType.ALL_F32, out.whole).write()
    if config["architectures"][0] in DROPPED:
        return
    model.no_mtp = True
    model(folder, gguf.LlamaFileType.ALL_F32, out.trunk).write()
    model.no_mtp, model.mtp_only = False, True
    model(folder, gguf.LlamaFileType.ALL_F32, out.heads).write()


DROPPED: dict[str, dict[str, str]] = {
    "DeepseekV3ForCausalLM": {},
    "Ernie4_5_MoeForCausalLM": {
        "model.mtp_block.0.": "model.layers.{i}.",
        "model.mtp_linear_proj.0.": "model.layers.{i}.eh_proj.",
        "model.mtp_emb_norm.0.": "model.layers.{i}.enorm.",
        "model.mtp_hidden_norm.0.": "model.layers.{i}.hnorm.",
    },
}
"""Architectures whose heads the converter drops, and how the names of heads' tensors that it does not know begin: as in
the checkpoint, and as in other architectures, with {i} for the number of the layer."""


def with_head(model: Any, config: dict[str, Any]) -> Any:
    """A converter that drops heads which can run: what it would take to keep them."""
    import gguf

    tensors = gguf.MODEL_TENSORS[model.model_arch]
    for tensor in (gguf.MODEL_TENSOR.NEXTN_EH_PROJ, gguf.MODEL_TENSOR.NEXTN_ENORM, gguf.MODEL_TENSOR.NEXTN_HNORM):
        if tensor not in tensors:
            tensors.append(tensor)

    class WithHead(model):  # type: ignore[misc]
        model_arch = model.model_arch
        skip_mtp = False

        @classmethod
        def filter_tensors(cls, item: Any) -> Any:
            name, read = item
            for theirs, known in DROPPED[config["architectures"][0]].items():
                if name.startswith(theirs):
                    name = known.format(i=config["num_hidden_layers"]) + name.removeprefix(theirs)
                    break
            return super().filter_tensors((name, read))

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.block_count += self.hparams["num_nextn_predict_layers"]
            self.tensor_map = gguf.get_tensor_name_map(self.model_arch, self.block_count)

        def set_gguf_parameters(self) -> None:
            super().set_gguf_parameters()
            self.gguf_writer.add_nextn_predict_layers(self.hparams["num_nextn_predict_layers"])

    return WithHead


def with_chosen_vocabulary(model: Any) -> Any:
    """A converter that drops how an assistant chooses a part of the vocabulary: what it would take to keep that."""
    import numpy as np

    class WithChosenVocabulary(model):  # type: ignore[misc]
        model_arch = model.model_arch

        @classmethod
        def filter_tensors(cls, item: Any) -> Any:
            name, read = item
            if not name.startswith("masked_embedding."):
                return super().filter_tensors(item)
            return (name + ".weight", read) if name.endswith("token_ordering") else item

        def modify_tensors(self, data: Any, name: str, bid: int | None) -> Any:
            if name == "masked_embedding.token_ordering.weight":
                numbers = type(data).to_eager(data).numpy().astype(np.int32)
                self.gguf_writer.add_tensor("masked_embd_ordering", numbers)  # the rest becomes F32
            elif name == "masked_embedding.centroids.weight":
                yield "masked_embd_centroids.weight", data
            else:
                yield from super().modify_tensors(data, name, bid)

        def set_gguf_parameters(self) -> None:
            super().set_gguf_parameters()
            self.gguf_writer.add_uint32(
                "gemma4-assistant.masked_embd.top_k", self.hparams["centroid_intermediate_top_k"]
            )

    return WithChosenVocabulary


if __name__ == "__main__":
    main(*sys.argv[1:])
