"""Text that people type as arguments: valid Unicode, whatever the locale.

Owns the decoding. Knows nothing about what the text is for.
"""

from __future__ import annotations


def decoded(text: str) -> str:
    """Return an argument as the UTF-8 that it was typed in. Raises UnicodeError if it is not UTF-8.

    The interpreter passes bytes that the locale cannot decode on as lone surrogates: all but ASCII in the C locale.
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8")
