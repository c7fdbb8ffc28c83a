"""The model that comes with the package, so that pymtp runs before anything is downloaded.

Owns its path. Its licence and its sources' are in NOTICE, which comes with every package.
"""

from pathlib import Path


def model_path() -> Path:
    return Path(__file__).with_name("nano-step35-Q4_K_M.gguf")
