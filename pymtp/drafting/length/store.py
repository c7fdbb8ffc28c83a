"""Small files that keep what was measured or learned for a setup: a model, how it was loaded, and the machine.

Owns where they are and how they are written; knows nothing of their content.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pymtp.engine import snapshot


class Record:
    """The file of one `kind` for one setup: `setup` names all that its content depends on, besides the machine."""

    def __init__(self, kind: str, setup: Mapping[str, object], folder: Path | None = None) -> None:
        self._kind, self._folder = kind, folder
        self._setup = {"machine": platform.node(), **setup}

    @property
    def path(self) -> Path:
        """Where the file is."""
        from platformdirs import user_cache_path

        folder = self._folder or user_cache_path("pymtp", appauthor=False) / self._kind
        name = hashlib.sha256(json.dumps(self._setup, sort_keys=True).encode()).hexdigest()[:24]
        return folder / f"{name}.json"

    def read(self) -> dict[str, Any]:
        """Its content; empty if there is no file that can be read."""
        try:
            if not self.path.is_file():  # reading a pipe would wait for a writer, a device might never end
                return {}
            content = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError, MemoryError):
            return {}
        return content if isinstance(content, dict) else {}

    def write(self, values: Mapping[str, object]) -> None:
        """Replace its content. Raises OSError or StateError if it cannot be written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        snapshot.write(self.path, json.dumps({**self._setup, **values}, indent=1).encode())
