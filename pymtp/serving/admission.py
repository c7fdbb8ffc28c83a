"""Which jobs run: those that have a slot, those that wait for one, and those that have lost theirs.

Owns the jobs, the slots, and which LoRA adapters apply. A job is a request. Must not know what a pass computes, or what
is reported of it.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from pymtp.drafting.lookup import EarlierTexts
from pymtp.drafting.text_vocab import TextVocab
from pymtp.engine.session import Session
from pymtp.errors import InvalidParameter, StateError
from pymtp.serving.adapters import Adapters, Scales
from pymtp.serving.request import Request
from pymtp.serving.sequence import TokenSequence
from pymtp.serving.slots import Slots
from pymtp.text.files import StrPath

N_HEADROOM = 64
"""Tokens of each sequence for which there has to be room, after its own, when another begins again: it would lose its
slot at once otherwise."""
N_CANDIDATES_MAX = 1 << 22
"""More than any vocabulary has."""
N_EXACT = 64
"""Candidates up to which their exact number is prepared; above it multiples, as each number has graphs of its own."""


class Running(NamedTuple):
    """A job in a slot."""

    job: Request
    sequence: TokenSequence


class Admission:
    """Gives the slots of a session to jobs, first come, first served.

    All that runs applies the same LoRA adapters: a job that asks for others waits until the rest have ended, and those
    that come after it wait for it.
    """

    def __init__(
        self, session: Session, earlier: EarlierTexts | None, adapters: Adapters | None, vocab: TextVocab | None = None
    ) -> None:
        self.running: dict[int, Running] = {}
        """The jobs that have a slot, by its number, in the order of admission."""
        self.waiting: deque[Request] = deque()
        self.suspended: list[Running] = []
        """Those that have had a slot, the oldest first."""
        self.slots = Slots(session)
        self.adapters = adapters or Adapters(session)
        """The LoRA adapters of the model."""
        self.vocab = vocab
        """What drafts are limited to, if that follows the texts."""
        self._session, self._earlier = session, earlier

    @property
    def n_cells_used(self) -> int:
        """Positions of the cache that are taken, by sequences that run and for those that may come."""
        return sum(running.sequence.n_decoded for running in self.running.values()) + self.slots.n_kept

    def submit(self, job: Request) -> None:
        """Have a job wait. One for a slot that does not exist fails, alone."""
        try:
            self._is_free(job)
            self.waiting.append(job)
        except InvalidParameter as error:
            job.fail(error)

    def remove(self, job: Request) -> None:
        """End a job early and free its slot; nothing happens if it has ended."""
        if job in self.waiting:
            self.waiting.remove(job)
        self.suspended = [each for each in self.suspended if each.job is not job]
        for slot in [slot for slot, running in self.running.items() if running.job is job]:
            self.release(slot)

    def remove_all(self) -> list[Request]:
        """Forget all jobs, and return them; slots and session stay as they are."""
        jobs = [*(each.job for each in (*self.running.values(), *self.suspended)), *self.waiting]
        for each in (self.running, self.suspended, self.waiting):
            each.clear()
        return jobs

    def admit(self) -> None:
        """Give free slots to the jobs that have waited longest: first to those whose slot was taken from them."""
        n_before = len(self.running)
        while len(self.running) < self._session.n_seq_max and (found := self._next()):
            job, sequence = found
            scope = self.adapters.scope(job.cache_scope, self.adapters.current)
            keys = sequence.keys
            sequence.slot = slot = self.slots.choose(keys, scope=scope, slot=job.slot)
            # before anything that can fail: whoever ends all jobs has to find it
            self.running[slot] = found
            sequence.begin(self.slots.take(slot, keys, scope=scope))
            if self.vocab:
                self.vocab.note(sequence.history)
        if len(self.running) > n_before:
            self._fit_session()

    def release(self, slot: int) -> None:
        """Free the slot of a sequence that has ended."""
        job, sequence = self.running[slot]
        if self._earlier and sequence.owner is not None:
            self._earlier.add(sequence.owner, sequence.history)
        scope = self.adapters.scope(job.cache_scope, sequence.lora)
        keeps = scope is not None and not sequence.error
        n = sequence.n_decoded
        if keeps and sequence.n_sound < n:  # what follows is not what another text with these tokens would have
            n = self.slots.shorten(slot, sequence.n_sound)
        del self.running[slot]  # after what can fail: whoever ends all jobs has to find it
        self.slots.release(slot, sequence.keys[:n] if keeps else None, scope or "")
        self._fit_session()

    def suspend(self, slot: int) -> None:
        """Take the slot of a sequence from it; it begins again as soon as the cache has room for it."""
        suspended = self.running.pop(slot)
        suspended.sequence.begin_again()
        self.suspended.insert(0, suspended)
        self.slots.release(slot)
        self._fit_session()

    def restore_slot(self, slot: int, tokens: Sequence[int], data: bytes, scope: str) -> None:
        """See Slots.restore. What it holds is for texts with the adapters of the model."""
        scales = self.adapters.default
        if not self._adapt(scales):
            raise StateError("texts with other adapters are generated; wait for them, or close them")
        self.slots.restore(slot, tokens, data, self.adapters.scope(scope, scales) or "")

    def restore(self, path: StrPath) -> None:
        """Restore a saved session. Raises StateError if that fails, or while sequences run in it."""
        if self.running:
            raise StateError("a state cannot be restored while texts are generated; wait for them, or close them")
        self._session.restore_file(path)
        self.slots.forget()

    def _next(self) -> Running | None:
        """The next sequence that can begin, or begin again; it waits no more."""
        if self.suspended:
            job, sequence = self.suspended[0]
            has_room = self._has_room(len(sequence.history)) and self._is_free(job)
            return self.suspended.pop(0) if has_room and self._adapt(sequence.lora) else None
        for job in [job for job in self.waiting if self._is_free(job)]:
            scales = self.adapters.scales(job.lora)
            if not self._adapt(scales):
                return None
            self.waiting.remove(job)
            try:
                sequence = job.start()
            except Exception as error:  # of this job alone
                job.fail(error)
                continue
            sequence.lora = scales
            return Running(job, sequence)
        return None

    def _adapt(self, scales: Scales) -> bool:
        """Have passes apply adapters with these scales, unless others run; whether they do."""
        if scales == self.adapters.current:
            return True
        if self.running:
            return False
        while self.slots.drop_oldest():  # all that they keep was computed with the adapters before
            pass
        self.adapters.apply(scales)
        return True

    def _is_free(self, job: Request) -> bool:
        return job.slot is None or self.slots.is_free(job.slot)

    def _has_room(self, n_tokens: int) -> bool:
        """Whether the cache has room for `n_tokens`, and for some more of all sequences, without what is kept."""
        needed = sum(len(running.sequence.history) for running in self.running.values()) + n_tokens
        return not self.running or needed + N_HEADROOM * (len(self.running) + 1) <= self._session.n_cells

    def _fit_session(self) -> None:
        """Have passes prepare as many candidates as the samplers of the running sequences look at, and limit drafts."""
        if self.vocab and self.running:
            self.vocab.set_limited(not any(each.sequence.params.is_reproducible for each in self.running.values()))
        n = max((each.sequence.sampler.n_candidates for each in self.running.values()), default=0)
        n = n if n <= N_EXACT else min(-(-n // N_EXACT) * N_EXACT, N_CANDIDATES_MAX)
        if n not in (0, self._session.n_reduced):
            self._session.reduce_logits(n)
