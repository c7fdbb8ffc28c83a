"""What a server counts of its answers.

Knows times and numbers; how they are asked for is in `metrics`.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

PREFIX = "llamacpp:"
"""The prefix of names that llama-server has too, so that its monitors find them."""
OWN_PREFIX = "pymtp:"
"""The prefix of all other names."""
_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Histogram:
    """How often a time was in which range."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_S) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, n: int = 1) -> None:
        """Count it, `n` times."""
        self._counts[bisect_left(_BOUNDS_S, seconds)] += n
        self._sum += seconds * n

    def lines(self, name: str, text: str) -> Iterator[str]:
        """The histogram in Prometheus' format."""
        name = OWN_PREFIX + name
        yield from head(name, "histogram", text)
        total = 0
        for bound, count in zip((*map(str, _BOUNDS_S), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {total}"


class Counts:
    """What a server counts of its answers."""

    def __init__(self) -> None:
        self.n_cached = 0
        """Tokens of prompts that were in the cache."""
        self.n_tokens_max = 0
        """Tokens of the longest prompt with its answer."""
        self.first_token = Histogram()
        self.between_tokens = Histogram()
        self.ended: Counter[str] = Counter()
        """Answers by how they ended."""


def head(name: str, kind: str, text: str) -> Iterator[str]:
    """The lines before the values of a metric."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
