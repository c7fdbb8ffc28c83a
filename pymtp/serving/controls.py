"""What users of a model change in it between passes: its slots, and the scales of its LoRA adapters.

Owns nothing: each call is handed to the engine's thread, where admission does it. Must not know texts or passes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pymtp.engine.session import Session
from pymtp.errors import StateError, require
from pymtp.loading.adapters import LoraAdapter
from pymtp.serving.adapters import Adapters
from pymtp.serving.admission import Admission
from pymtp.serving.loop import EngineLoop
from pymtp.serving.params import GenerationParams, with_options
from pymtp.serving.prefix_cache import PrefixFiles
from pymtp.text.files import StrPath


class ModelSlots:
    """What the cache of a model holds of texts that have ended, slot by slot: `model.slots`."""

    def __init__(self, loop: EngineLoop, admission: Admission, session: Session) -> None:
        self._loop, self._admission, self._session = loop, admission, session

    def save(self, slot: int, *, scope: str | None = None) -> tuple[list[int], bytes]:
        """The tokens that a free slot holds of an earlier text, and bytes for `restore`, heads included.

        Nothing if that text had a `cache_scope` other than `scope`; None: whatever its scope was.

        Raises StateError while a text is generated in it, InvalidParameter for a slot that does not exist.
        """
        return self._loop.call(lambda: self._admission.slots.save(slot, scope))

    def restore(self, slot: int, tokens: Sequence[int], data: bytes, *, scope: str = "") -> None:
        """Put what `save` returned into a free slot, for later texts with `cache_prompt` and this `cache_scope`.

        Raises StateError for bytes that are damaged or of another model, and while a text is generated in it.
        """
        self._loop.call(lambda: self._admission.restore_slot(slot, tokens, data, scope))

    def erase(self, slot: int) -> int:
        """Empty a free slot; returns how many tokens it held. Raises StateError while a text is generated in it."""
        return self._loop.call(lambda: self._admission.slots.erase(slot))

    def empty(self) -> None:
        """Drop what texts with `cache_prompt` have left in the cache."""
        self._loop.call(lambda: self._admission.slots.empty())

    def keep_prefixes(self, n_bytes: int) -> None:
        """Keep in host memory what slots held of texts with `cache_prompt`, up to `n_bytes`, for later ones."""
        require(isinstance(n_bytes, int) and n_bytes >= 0, "n_bytes", "a number of bytes, 0 or more", n_bytes)
        self._loop.call(lambda: self._admission.slots.cache.limit(n_bytes))

    def keep_files(self, folder: StrPath, n_bytes: int) -> None:
        """Find prefixes in a folder, too, where `write_files` puts them, up to `n_bytes` together.

        Several processes and models may share it. Raises InvalidParameter if it cannot be written.
        """
        files = PrefixFiles(Path(folder), n_bytes, self._session.can_restore)
        self._loop.call(lambda: self._admission.slots.cache.use(files))

    def write_files(self) -> str | None:
        """Write what slots and memory hold of ended texts to the folder of `keep_files`, unless it is there.

        Generation continues meanwhile. Returns why not, where something could not be written.
        """
        slots, failure = self._admission.slots, None
        if (files := slots.cache.files) is None:
            return None
        unwritten = self._loop.call(slots.unwritten)
        for saved in unwritten:
            if saved.data is not None:
                try:
                    saved.path = files.write(saved.kept, saved.data)
                except StateError as error:  # it is computed again later
                    failure = str(error)
        self._loop.call(lambda: slots.cache.adopt(unwritten))
        return failure

    def n_cells_used(self) -> int:
        """Positions of the cache that are taken, of `session.n_cells`."""
        return self._loop.call(lambda: self._admission.n_cells_used)

    def save_file(self, path: StrPath) -> None:
        """Save all sequences in the cache to a file, heads included. Raises StateError if it cannot be written."""
        self._loop.call(lambda: self._session.save_file(path))

    def restore_file(self, path: StrPath) -> None:
        """Restore what `save_file` has saved.

        Raises StateError for a file that is damaged or of another model, and while texts are generated.
        """
        self._loop.call(lambda: self._admission.restore(path))


class ModelAdapters(Sequence[LoraAdapter]):
    """The LoRA adapters of a model (`lora`), with the scales of texts that do not ask for others: `model.adapters`."""

    def __init__(self, loop: EngineLoop, adapters: Adapters, loaded: Sequence[LoraAdapter]) -> None:
        self._loop, self._adapters, self._loaded = loop, adapters, loaded

    def scale(self, scales: Mapping[int, float]) -> None:
        """Apply adapters with these scales, by their numbers, and no others, to texts that begin from now on.

        Raises InvalidParameter for an adapter that is not loaded.
        """
        asked = with_options(GenerationParams(), {"lora": scales}).lora or {}
        is_loaded = max(asked, default=-1) < len(self)
        require(is_loaded, "scales", f"of adapters that are loaded: {len(self)}", scales)
        self._loop.call(lambda: setattr(self._adapters, "default", self._adapters.scales(asked)))

    def __len__(self) -> int:
        return len(self._loaded)

    def __getitem__(self, index: Any) -> Any:
        scaled = zip(self._loaded, self._adapters.default, strict=True)
        return [replace(one, scale=scale) for one, scale in scaled][index]
