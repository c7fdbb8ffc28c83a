"""Prompts of a data set, for `map_batches` of Ray Data.

Owns a model for each of Ray's workers. Needs no Ray itself.
"""

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymtp.errors import ContextFull, PymtpError
from pymtp.loading.params import ModelParams
from pymtp.model import Model
from pymtp.serving.generation import Generation
from pymtp.serving.params import GenerationParams
from pymtp.text.files import StrPath


class Completions:
    """A callable class that continues the prompts of a column, as many at a time as the model has slots.

        rows.map_batches(Completions, fn_constructor_kwargs={"path": "model.gguf", "n_seq_max": 8}, concurrency=2)

    Adds three columns: the texts (`text`), why each ended (`finish_reason`), and what went wrong ("" if nothing): a
    prompt for which the context has no room is a row with an error, and the others are answered.
    """

    def __init__(
        self,
        path: StrPath | None = None,
        *,
        prompt: str = "prompt",
        params: GenerationParams | None = None,
        model: ModelParams | None = None,
        **options: Any,
    ) -> None:
        """`prompt`: the column of prompts. The others are those of Model; `n_seq_max` is 8 unless it is given."""
        self._prompt, self._params = prompt, params
        self._model = Model(path, model=model, **{"n_seq_max": 8, **options})

    def __call__(self, rows: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Columns in, columns out, in the same order. Raises BackendError if the model fails."""
        answers = [self._submit(str(prompt)) for prompt in rows[self._prompt]]
        columns = zip(*map(_columns, answers), strict=True)
        names = ("text", "finish_reason", "error")
        return {**rows, **{name: np.array(values, dtype=object) for name, values in zip(names, columns, strict=True)}}

    def _submit(self, prompt: str) -> Generation | PymtpError:
        try:
            return self._model.generate(prompt, self._params)
        except PymtpError as error:  # of this prompt
            return error


def _columns(answer: Generation | PymtpError) -> tuple[str, str, str]:
    if isinstance(answer, PymtpError):
        return "", "error", str(answer)
    with suppress(ContextFull):
        "".join(answer)
    return answer.text, answer.finish_reason or "error", str(answer.error or "")
