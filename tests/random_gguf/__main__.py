"""python -m random_gguf FOLDER   # with tests/ on the path: the models that the native tests load"""

import argparse
from pathlib import Path

from . import write_gemma4, write_gemma4_assistant, write_glm4moe, write_mimo2, write_qwen3next, write_qwen35

parser = argparse.ArgumentParser(description="Write the models that the native tests load.")
parser.add_argument("folder", type=Path)
folder = parser.parse_args().folder
folder.mkdir(parents=True, exist_ok=True)
write_glm4moe(folder / "glm4moe.gguf")
write_mimo2(folder / "mimo2.gguf")
write_mimo2(folder / "mimo2-3-heads.gguf", n_heads=3)
write_qwen35(folder / "qwen35.gguf")
write_gemma4(folder / "gemma4.gguf")
write_gemma4_assistant(folder / "gemma4-assistant.gguf")
write_qwen3next(folder / "qwen3next.gguf")
