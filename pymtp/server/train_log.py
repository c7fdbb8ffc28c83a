"""Texts that were served, for `pymtp heads train --data`: prompts and answers, one after the other, in one file.

Owns the file, which only the server's user can read, and its length.
"""

import os
from pathlib import Path

from pymtp.errors import InvalidParameter
from pymtp.loading.images import ImagePrompt
from pymtp.loading.vocabulary import Vocabulary
from pymtp.text.files import make_own_folder

from .answer import LiveAnswer
from .logs import log

N_BYTES_MAX = 1 << 30


class TrainLog:
    """Texts in `folder`, up to N_BYTES_MAX. Raises InvalidParameter if it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "served.txt"
        make_own_folder(folder, "train_log")
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise InvalidParameter("train_log", f"a folder that can be written ({error.strerror})") from None
        self._is_on = True
        log("texts of requests are stored", file=str(self._path), most_mib=N_BYTES_MAX >> 20)

    def add(self, answer: LiveAnswer, vocabulary: Vocabulary) -> None:
        """Keep what was asked and answered. Says so once if there is no more room."""
        if not self._is_on or isinstance(answer.prompt, ImagePrompt) or not answer.tokens:
            return
        text = vocabulary.detokenize([*answer.prompt, *answer.tokens], special=True) + "\n"
        try:
            if os.fstat(self._file).st_size + len(text) > N_BYTES_MAX:
                raise OSError(0, "it is as long as it may be")
            os.write(self._file, text.encode(errors="replace"))
        except OSError as error:
            self._is_on = False
            log("texts are no longer stored", level="warning", file=str(self._path), reason=error.strerror)

    def close(self) -> None:
        """Nothing comes after this."""
        self._is_on = False
        os.close(self._file)
