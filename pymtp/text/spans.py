"""Numbers that follow on each other, together: for messages."""

from collections.abc import Collection


def spans(numbers: Collection[int], to: str, between: str) -> str:
    """Numbers in ascending order as spans: 0, 1, 2 and 8 with "-" and "," as 0-2,8."""
    found = set(numbers)
    starts = [n for n in sorted(found) if n - 1 not in found]
    ends = [n for n in sorted(found) if n + 1 not in found]
    return between.join(f"{a}{to}{b}" if a < b else f"{a}" for a, b in zip(starts, ends, strict=True))
