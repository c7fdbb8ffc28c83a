"""A request while it waits and while it runs: what was asked, and the updates for whoever asked.

The engine's side of a generation: it lives in the engine's thread and hands updates over through a queue. Small while
it waits: the sampler and the rest of a sequence are made when there is a slot for it.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple

from pymtp.errors import ContextFull, InvalidParameter, NotFinite, require
from pymtp.loading.images import ImagePrompt
from pymtp.loading.vocabulary import Vocabulary
from pymtp.sampling.logprobs import TokenLogprobs
from pymtp.serving.make_sequence import ModelTraits, check_request, make_sequence
from pymtp.serving.params import GenerationParams
from pymtp.serving.sequence import FinishReason, ShareResult, TokenSequence
from pymtp.serving.statistics import Stats
from pymtp.text.stream import TextStream


class Update(NamedTuple):
    """What a pass did for a request."""

    n_decoded: int = 0
    """Tokens of the sequence that are in the cache: how far a prompt is."""
    n_cached: int = 0
    """Tokens of the prompt that were in the cache before."""
    tokens: Sequence[int] = ()
    n_accepted: int = 0
    """How many of the tokens, from the first on, are accepted drafts."""
    logprobs: Sequence[TokenLogprobs] = ()
    finish_reason: FinishReason | None = None
    """Set in the last update, unless there is an error."""
    error: BaseException | None = None
    made_at: float = 0.0
    """When, in seconds of a monotonic clock; it may be taken much later."""


class Request:
    """Asks for the continuation of a prompt.

    Raises what `check_request` raises, ContextFull if the prompt does not fit, InvalidParameter if it is empty.
    """

    def __init__(self, prompt: str | Sequence[int], params: GenerationParams, traits: ModelTraits) -> None:
        self.params = params
        self.cache_scope = params.cache_scope if params.cache_prompt else None
        """Whose tokens of its prompt it reuses, if the cache holds them, and for whom it leaves its own there; None: it
        does neither."""
        self.slot, self.lora = params.slot, params.lora
        self.prompt: array[int] | None = _tokens(prompt, traits)
        """Token ids, until it runs."""
        self.images = prompt.images if isinstance(prompt, ImagePrompt) else ()
        """Images of the prompt."""
        self.n_prompt = len(self.prompt)
        check_request(params, traits)
        is_loaded = not params.lora or max(params.lora) < traits.n_adapters
        require(is_loaded, "lora", f"scales of adapters that are loaded: {traits.n_adapters}", params.lora)
        self._traits = traits
        self.stats = Stats()
        """Counts and times of the passes so far. Written by the engine's thread."""
        self.sequence: TokenSequence | None = None
        """The sequence, once it runs. It is the engine's: others may look at what does not change."""
        self.updates: SimpleQueue[Sequence[Update]] = SimpleQueue()
        self._held: list[Update] = []  # not sent yet
        self.is_whole = False
        """Whether nobody wants to know of tokens between the first and the last."""
        self.listener: Callable[[], object] | None = None
        """Called in the engine's thread after each update; has to be quick."""

    def start(self) -> TokenSequence:
        """The sequence, now that there is a slot for it."""
        assert self.prompt is not None
        self.sequence = make_sequence(self.prompt.tolist(), self.params, self._traits, self.images)
        self.prompt = None
        self.sequence.stats = self.stats
        if self.params.stops:
            self.sequence.cut = _StopFinder(self.params, self._traits.vocabulary)
        return self.sequence

    def report(self, result: ShareResult | None, *, may_wait: bool) -> None:
        """Take the result of a pass in which its sequence took part; None: it ends, as the cache had no room for it.

        `may_wait`: it may be batched with the next report.
        """
        sequence = self.sequence
        assert sequence is not None
        tokens, n_accepted, logprobs = (result.tokens, result.n_accepted, result.logprobs) if result else ([], 0, ())
        error = sequence.error
        if isinstance(error, NotFinite):
            name = self._traits.name
            error = NotFinite(f"{name} produced NaN or infinite logits: {error}; a file is damaged or a type overflows")
        done = sequence.n_decoded, sequence.n_cached
        update = Update(*done, tokens, n_accepted, logprobs, sequence.finish_reason, error, time.monotonic())
        self._send(update, may_wait=may_wait or self.is_whole)

    def fail(self, error: BaseException) -> None:
        """End with an error, in a slot or before there was one."""
        self._send(Update(error=error))

    def wake(self) -> None:
        """Send an update without content, for whoever waits for one."""
        self._send(Update())

    def _send(self, update: Update, *, may_wait: bool = False) -> None:
        self._held.append(update)
        if may_wait and update.tokens and not (update.finish_reason or update.error):
            return
        self.updates.put(self._held)
        self._held = []
        if self.listener:
            self.listener()


class _StopFinder:
    """Finds the token with which a stop string is complete. See TokenSequence.cut."""

    def __init__(self, params: GenerationParams, vocabulary: Vocabulary) -> None:
        self._stream, self._piece = TextStream(params.stops), vocabulary.piece_with(params.preserved_tokens)

    def __call__(self, tokens: Sequence[int]) -> int | None:
        for i, token in enumerate(tokens):
            self._stream.push(self._piece(token))
            if self._stream.stopped_by is not None:
                return i + 1
        return None


def _tokens(prompt: str | Sequence[int], traits: ModelTraits) -> "array[int]":
    n_vocab = traits.vocabulary.size
    try:
        if isinstance(prompt, (bytes, bytearray)):
            raise TypeError
        tokens = array("i", traits.vocabulary.tokenize(prompt) if isinstance(prompt, str) else prompt)
    except (TypeError, OverflowError):
        raise InvalidParameter("prompt", "a string, or a list of token ids", value=prompt) from None
    are_known = not tokens or 0 <= min(tokens) <= max(tokens) < n_vocab
    require(are_known, "prompt", f"of token ids below {n_vocab}", prompt)
    is_unknown = isinstance(prompt, str) and prompt
    require(tokens, "prompt", "of characters that the vocabulary has" if is_unknown else "at least one token long")
    n_cells, what, fix = len(tokens), "tokens", "shorten it"
    if isinstance(prompt, ImagePrompt) and prompt.images:
        require(prompt.images[-1].end < len(prompt), "prompt", "a text that continues after its last image")
        n_cells, what = prompt.n_cells, "cells, those of its images included"
        fix = "use smaller images (image_max_tokens)"
    if n_cells >= traits.n_ctx:
        has = f"the prompt has {n_cells} {what}, the context only {traits.n_ctx}"
        raise ContextFull(f"{has}: {fix} or raise the context size (n_ctx, -c)")
    return tokens
