"""Small files of what was found out about a setup: a model, how it was loaded, and the machine.

Owns where they lie and how they are written; knows nothing of what they say.
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
    """The file of one `kind` for a setup: `setup` is all that its content depends on, besides the machine."""

    def __init__(self, kind: str, setup: Mapping[str, object], folder: Path | None = None) -> None:
        self._kind, self._folder = kind, folder
        self._setup = {"machine": platform.node(), **setup}

    @property
    def path(self) -> Path:
        """Where it is kept."""
        from platformdirs import user_cache_path

        folder = self._folder or user_cache_path("pymtp", appauthor=False) / self._kind
        name = hashlib.sha256(json.dumps(self._setup, sort_keys=True).encode()).hexdigest()[:24]
        return folder / f"{name}.json"

    def read(self) -> dict[str, Any]:
        """What it says; empty if there is none that can be read."""
        try:
            found = json.loads(self.path.read_bytes())
        except (OSError, ValueError, RecursionError, MemoryError):
            return {}
        return found if isinstance(found, dict) else {}

    def write(self, values: Mapping[str, object]) -> None:
        """Let it say this, whatever it said. Raises OSError or StateError if it cannot be written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        snapshot.write(self.path, json.dumps({**self._setup, **values}, indent=1).encode())
