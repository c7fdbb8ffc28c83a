"""Wraps text at words as it arrives, so that a terminal does not break it in the middle of one.

Owns the word that is not over yet. Knows characters and their widths; nothing about what they mean.
"""

from rich.cells import cell_len

Styled = tuple[str, str]
"""A text, and the escape sequence that its style begins with; "": none."""


class WordWrapper:
    """Breaks lines at spaces. Indentation, tabs and words longer than a line stay as they are."""

    def __init__(self) -> None:
        self._column = 0
        self._space = ""  # between the line so far and the word
        self._word: list[Styled] = []

    def push(self, text: str, style: str, columns: int) -> list[Styled]:
        """Return what is certain after `text`, for a terminal that is `columns` wide."""
        ready: list[Styled] = []
        for char in text:
            if not char.isspace():
                self._word.append((char, style))
                continue
            ready += self._take_word(columns)
            if char == "\n":
                ready.append(("\n", ""))  # spaces at the end of a line are dropped
                self._column, self._space = 0, ""
            else:
                self._space += char
        return _joined(ready)

    def flush(self, columns: int) -> list[Styled]:
        """Return what was held back: nothing follows it for now."""
        ready = [*self._take_word(columns), (self._space, "")]
        self._column, self._space = self._column + cell_len(self._space), ""
        return _joined(ready)

    def _take_word(self, columns: int) -> list[Styled]:
        if not self._word:
            return []
        word, self._word = self._word, []
        n_cells = cell_len("".join(char for char, _ in word))
        n_before = self._column + cell_len(self._space.expandtabs(8))
        space, self._space = self._space, ""
        if self._column and n_before + n_cells >= columns and space:
            self._column = _end(n_cells, columns)
            return [("\n", ""), *word]
        self._column = _end(n_before + n_cells, columns)
        return [(space, ""), *word]


def _end(n_cells: int, columns: int) -> int:
    """The column after `n_cells`, which the terminal breaks where they fill lines; a full line has not ended yet."""
    return (n_cells - 1) % max(columns, 1) + 1


def _joined(parts: list[Styled]) -> list[Styled]:
    """Neighbours of one style together; without empty ones."""
    joined: list[Styled] = []
    for text, style in parts:
        if joined and (joined[-1][1] == style or not text.strip()):
            joined[-1] = (joined[-1][0] + text, joined[-1][1])
        elif text:
            joined.append((text, style))
    return joined
