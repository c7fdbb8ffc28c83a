"""From the bytes of single tokens to text, as the tokens arrive.

Owns the bytes of a character whose end has not come yet. Knows bytes only; never token ids.
"""

from __future__ import annotations

import codecs


class Utf8Stream:
    """Joins byte pieces into text; a character split over several tokens comes out whole.

    What `push` and `flush` return, joined, equals `all_bytes.decode("utf-8", errors="replace")`:
    invalid bytes become U+FFFD, as soon as it is certain that they are invalid.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, piece: bytes) -> str:
        """Return the text that is complete after `piece`; it may be empty."""
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """Return what the last incomplete character becomes, and start afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
