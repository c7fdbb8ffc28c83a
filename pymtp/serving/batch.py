"""Many generations of one model, taken as they come.

Owns which generations belong together. Which of them run when is the scheduler's business.
"""

from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING
from weakref import ref

from pymtp.errors import Closed, ContextFull
from pymtp.serving.generation import Generation, OnPrompt
from pymtp.serving.statistics import Stats

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pymtp.serving.params import GenerationOptions, GenerationParams

Submit = Callable[..., Generation]


class Batch:
    """Generates the texts of many requests together: one pass of the model serves all that are running.

    Iterating yields (generation, piece of its text) as the pieces come, until all generations have ended; the last
    piece of a generation may be empty. Requests can be submitted at any time, before and while iterating; those that
    find all of the model's `n_seq_max` slots taken wait for the next free one.

    Iterating raises BackendError where the model fails. A generation for which the cache has no room ends with its
    `error` set.
    """

    def __init__(self, submit: Submit, stats: Callable[[], Stats]) -> None:
        self._submit, self._read_stats = submit, stats
        self._live: dict[int, Generation] = {}  # by id
        self._arrived: SimpleQueue[ref[Generation]] = SimpleQueue()  # whose updates have come
        self._before = stats()
        self._is_closed = False

    @property
    def stats(self) -> Stats:
        """Counts and times of all that the model has generated since the batch was made.

        A pass's time is shared out between prompts and generation by their rows.
        """
        return self._read_stats() - self._before

    def submit(
        self,
        prompt: str | Sequence[int],
        params: "GenerationParams | None" = None,
        *,
        on_prompt: OnPrompt | None = None,
        **options: "Unpack[GenerationOptions]",
    ) -> Generation:
        """Ask for the continuation of `prompt`. Parameters and errors are those of `Model.generate`.

        Raises Closed after `close`.
        """
        if self._is_closed:
            raise Closed("the batch is closed; make another one")
        generation = self._submit(prompt, params, on_prompt=on_prompt, arrived=self._arrived, **options)
        self._live[id(generation)] = generation
        self._arrived.put(ref(generation))  # its updates may have come before it was among the live ones
        return generation

    def __iter__(self) -> Iterator[tuple[Generation, str]]:
        while self._live:
            generation = self._arrived.get()()
            if generation is None or id(generation) not in self._live:
                continue
            try:
                pieces = list(iter(generation.take_now, None))
            except BaseException:  # of a callback
                self._live.pop(id(generation), None)
                generation.close()
                raise
            if generation.is_over:
                self._live.pop(id(generation), None)
            if generation.error and not isinstance(generation.error, ContextFull):
                raise generation.error
            if any(pieces) or (pieces and generation.is_over):
                yield generation, "".join(pieces)

    def close(self) -> None:
        """End all generations early; no more can be submitted."""
        self._is_closed = True
        live, self._live = self._live, {}
        for generation in live.values():
            generation.close()

    def __enter__(self) -> "Batch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<pymtp.Batch of {len(self._live)} generations that have not ended>"
