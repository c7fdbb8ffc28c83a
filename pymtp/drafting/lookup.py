"""Drafts from earlier text: what followed the newest tokens where the sequence, or another one, had them before.

The index is native (native/include/pymtp-text.h). Knows token ids; never text, acceptance or the target's sampling.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from pymtp.binding.library import check, ffi, lib, made
from pymtp.drafting.interface import DrafterTraits, DraftOutcome, DraftRequest, Proposal
from pymtp.engine.session import Session

MATCH_MIN = 3
"""Tokens that have to be the same. Tuned on this repository's files (bench/lookup.py): with 2, drafts are right less
often; with 4, there are fewer."""
MATCH_MAX: int = lib.PYMTP_LOOKUP_MATCH_MAX
"""Tokens that are compared."""
SHARED_BYTES = 64 << 20
"""The most memory for sequences that have ended: 4 million tokens."""
SHARED_TOKENS = 16384
"""The most that is kept of one: a token takes 2 us, for which all other sequences wait."""
_TOKEN_BYTES = 16


class LookupMatch(NamedTuple):
    """Where the newest tokens were seen before."""

    tokens: list[int]
    """What followed there."""
    n_matched: int
    """The tokens that are the same, at most MATCH_MAX; 0: none was found."""


NO_MATCH = LookupMatch([], 0)


class LookupIndex:
    """Finds tokens that occurred before. Holds one history that grows, or many, each ended by `end_history`.

    It keeps the latest `n_max` tokens (rounded up to a power of two, 64 or more), in 16 bytes each, and grows with what
    it holds. A match has at least `n_min` tokens. Raises PymtpError for values out of range, BackendError if memory
    runs out.
    """

    def __init__(self, n_max: int, *, n_min: int = MATCH_MIN) -> None:
        self._native = made("lookup", lib.pymtp_lookup_init, n_max, n_min)
        self._found, self._n_matched = ffi.new("int32_t[]", 16), ffi.new("int32_t *")
        self._history: Sequence[int] = ()
        self._n_followed = 0  # of its tokens, those in the index

    def __len__(self) -> int:
        """Tokens in it, ends of histories included."""
        return int(lib.pymtp_lookup_n_tokens(self._native))

    @property
    def n_bytes(self) -> int:
        return int(lib.pymtp_lookup_bytes(self._native))

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens to the history; the oldest ones are dropped for them if it is full."""
        check(lib.pymtp_lookup_append(self._native, len(tokens), _array(tokens)))

    def end_history(self) -> None:
        """What is appended from now on belongs to another history: no match crosses over."""
        check(lib.pymtp_lookup_end(self._native))

    def clear(self) -> None:
        check(lib.pymtp_lookup_clear(self._native))

    def follow(self, history: Sequence[int]) -> None:
        """Bring the index up to `history`, which is all that it holds then.

        A sequence's history only grows. Another sequence has another list, of which the index keeps what it can use.
        """
        n = self._n_followed
        if len(history) < n or (history is not self._history and history[:n] != self._history[:n]):
            self.clear()
            n = 0
        self.append(history[n:])
        self._history, self._n_followed = history, len(history)

    def find(self, n: int, after: Sequence[int] | None = None) -> LookupMatch:
        """What followed the longest match with the last tokens, at most `n` tokens; the latest of equal matches.

        They are the last tokens of the index itself, or of `after`. Of many occurrences the latest 64 are compared.
        """
        tail = ffi.NULL if after is None else _array(after[-MATCH_MAX:])
        n_tail = len(tail) if tail else 0
        if n > len(self._found):
            self._found = ffi.new("int32_t[]", n)
        n_found = lib.pymtp_lookup_find(self._native, n_tail, tail, n, self._found, self._n_matched)
        return LookupMatch(ffi.unpack(self._found, n_found) if n_found else [], self._n_matched[0])


class EarlierTexts:
    """The ends of the sequences that have ended, kept apart by their owners: nobody finds another's.

    An index takes up to a quarter of `n_bytes_max` and drops its oldest tokens for new ones. Where all of them take
    more than `n_bytes_max`, the owner goes whose last sequence ended longest ago.
    """

    def __init__(self, n_bytes_max: int = SHARED_BYTES) -> None:
        self._n_bytes_max = n_bytes_max
        self._indexes: dict[str, LookupIndex] = {}  # by owner; the latest last

    @property
    def n_bytes(self) -> int:
        return sum(index.n_bytes for index in self._indexes.values())

    def add(self, owner: str, tokens: Sequence[int]) -> None:
        """A sequence of the owner has ended."""
        n_max = self._n_bytes_max // 4 // _TOKEN_BYTES
        index = self._indexes.pop(owner, None)
        self._indexes[owner] = index = LookupIndex(n_max) if index is None else index
        index.append(tokens[-min(n_max, SHARED_TOKENS) :])
        index.end_history()
        while self.n_bytes > self._n_bytes_max:
            del self._indexes[next(iter(self._indexes))]

    def find(self, owner: str, n: int, after: Sequence[int]) -> LookupMatch:
        """What followed the longest match with the last tokens of `after`, in a sequence of the owner."""
        index = self._indexes.get(owner)
        return NO_MATCH if index is None else index.find(n, after)


class LookupDrafter:
    """Drafts what followed the longest match of a sequence's newest tokens in its own prompt and output.

    With `earlier`, a longer match in a sequence that has ended counts more, for requests with an owner. Needs no heads.
    A round drafts no more tokens than match, so nothing where nothing matches: longer drafts are mostly wrong
    (bench/lookup.py measures it), unless a policy asks for more (see AdaptiveDrafter).
    """

    traits: ClassVar = DrafterTraits("lookup", only_looks_up=True, auto_draft_max=None)

    def __init__(self, session: Session, earlier: EarlierTexts | None = None) -> None:
        n_max = session.n_ctx
        self._indexes: defaultdict[int, LookupIndex] = defaultdict(lambda: LookupIndex(n_max))  # by slot
        self._earlier = earlier

    @property
    def n_bytes(self) -> int:
        """What the indexes take of memory at present, those of earlier texts included."""
        earlier = self._earlier.n_bytes if self._earlier else 0
        return earlier + sum(index.n_bytes for index in self._indexes.values())

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        matches = (self.find(request) if request.n_draft > 0 else None for request in requests)
        return [Proposal(match.tokens[: match.n_matched]) if match else Proposal() for match in matches]

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        """Nothing to note: the next histories show what was accepted."""

    def find(self, request: DraftRequest) -> LookupMatch:
        """What followed the newest tokens of the request, up to `n_draft` tokens."""
        index = self._indexes[request.slot]
        index.follow(request.history)
        match = index.find(request.n_draft)
        if self._earlier and request.owner is not None and match.n_matched < MATCH_MAX:
            other = self._earlier.find(request.owner, request.n_draft, request.history[-MATCH_MAX:])
            match = other if other.n_matched > match.n_matched else match
        return match


def _array(tokens: Sequence[int]) -> Any:
    return ffi.new("int32_t[]", tokens if isinstance(tokens, list) else list(tokens))
