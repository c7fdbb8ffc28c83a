"""Which LoRA adapters a session applies: one set of scales for all that is computed together.

Owns the scales. Knows nothing of what is computed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pymtp.engine.session import Session
from pymtp.loading.adapters import LoraAdapter

Scales: TypeAlias = tuple[float, ...]
"""One for each adapter of the model."""


class Adapters:
    """The adapters of a model in its session."""

    def __init__(self, session: Session, adapters: Sequence[LoraAdapter] = ()) -> None:
        """Raises PymtpError for an adapter that llama.cpp's graphs do not apply."""
        self._session, self._adapters = session, adapters
        self.default: Scales = tuple(adapter.scale for adapter in adapters)
        """Scales of texts that do not ask for others."""
        self.current: Scales = ()
        """Scales that passes apply."""
        if adapters:
            self.apply(tuple(scale or 1.0 for scale in self.default))  # what does not fit shows now
            self.apply(self.default)

    def scales(self, asked: Mapping[int, float] | None) -> Scales:
        """Scales of a text that asks for some adapters by their numbers and for no others; None: the default."""
        if asked is None:
            return self.default
        return tuple(float(asked.get(i, 0.0)) for i in range(len(self._adapters)))

    def apply(self, scales: Scales) -> None:
        """Have passes apply these from now on. What the session holds was computed with the ones before."""
        found = [(one, scale) for one, scale in zip(self._adapters, scales, strict=True) if scale]
        named = "".join(f"+{one.fingerprint}*{scale!r}" for one, scale in found)
        self._session.adapt([(one.native, scale) for one, scale in found], hashlib.sha256(named.encode()).hexdigest())
        self.current = scales

    def scope(self, scope: str | None, scales: Scales) -> str | None:
        """A scope of prefixes that only texts with the same scales share."""
        return scope if scope is None or not any(scales) else f"{scope}\0{scales}"


def without_scales(scope: str) -> str:
    """The scope that `Adapters.scope` made this one of."""
    return scope.partition("\0")[0]
