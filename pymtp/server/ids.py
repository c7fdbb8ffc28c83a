"""Names of requests, answers and their parts.

Knows nothing of what they name.
"""

from __future__ import annotations

import secrets


def new_id(kind: str) -> str:
    """A name that nothing else has."""
    return f"{kind}-{random_name()}"


def random_name() -> str:
    """32 random letters and digits."""
    return secrets.token_hex(16)
