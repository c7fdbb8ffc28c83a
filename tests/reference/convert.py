"""python convert.py LLAMA_CPP CHECKPOINT OUT [--mtp | --no-mtp]: llama.cpp's own converter on a tiny checkpoint, in F32.

Runs in a process of its own, because the converter comes with another version of the gguf package. Tiny checkpoints have
no tokenizer: the vocabulary is that of the tests' models.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal


def convert(llama_cpp: Path, checkpoint: Path, out: Path, part: Literal["all", "--mtp", "--no-mtp"] = "all") -> Path:
    """Convert `checkpoint` with the converter below `llama_cpp`. `part`: all of it, the heads alone, or none of them."""
    options = [] if part == "all" else [part]
    done = subprocess.run(
        [sys.executable, __file__, str(llama_cpp), str(checkpoint), str(out), *options], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return out


def main(llama_cpp: str, checkpoint: str, out: str, part: str = "") -> None:
    here = Path(__file__).parent
    sys.path[:0] = [f"{llama_cpp}/gguf-py", llama_cpp, str(here.parent)]
    sys.path.remove(str(here))
    import conversion
    import gguf

    from random_gguf.writer import add_vocabulary

    config: dict[str, Any] = json.loads((Path(checkpoint) / "config.json").read_text())
    model: Any = conversion.get_model_class(config["architectures"][0])
    if config["architectures"][0] == "DeepseekV3ForCausalLM":
        model = with_head(model)
    model.set_vocab = lambda self: add_vocabulary(self.gguf_writer)
    model.mtp_only, model.no_mtp = part == "--mtp", part == "--no-mtp"
    # the published form, as users' converters find it: transformers would rename keys
    conversion.ModelBase.load_hparams = staticmethod(lambda *_, **__: dict(config))
    model(Path(checkpoint), gguf.LlamaFileType.ALL_F32, Path(out)).write()


def with_head(model: Any) -> Any:
    """The converter of DeepSeek-V3 drops its head, which llama.cpp can run: what it would take to keep it."""
    import gguf

    class WithHead(model):  # type: ignore[misc]
        model_arch = model.model_arch
        skip_mtp = False

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.block_count += self.hparams["num_nextn_predict_layers"]
            self.tensor_map = gguf.get_tensor_name_map(self.model_arch, self.block_count)

        def set_gguf_parameters(self) -> None:
            super().set_gguf_parameters()
            self.gguf_writer.add_nextn_predict_layers(self.hparams["num_nextn_predict_layers"])

    return WithHead


if __name__ == "__main__":
    main(*sys.argv[1:])
