"""Samples tokens from logits: the chain of samplers of one sequence, its history and its random generators.

The chain runs in the native library (native/include/pymtp-text.h). Knows token ids, logits and probabilities;
never text.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from random import Random
from typing import Any

from pymtp.binding.library import check, ffi, lib, made
from pymtp.engine.session import LogitsRow, Row
from pymtp.errors import BackendError, Closed, InvalidParameter, NothingAllowed, PymtpError
from pymtp.loading.vocabulary import Vocabulary
from pymtp.sampling.distribution import Distribution
from pymtp.sampling.params import SAMPLERS, SamplingParams
from pymtp.sampling.rules import AnswerRules


class Sampler:
    """Samples the tokens of one sequence.

    `history` holds the first tokens of the sequence, for the samplers that look at it. `banned` tokens are never
    drafted or sampled, nor are those that the vocabulary suppresses. `vocabulary` None stands for `n_vocab` tokens
    without texts, for chains without DRY's breakers, infill and grammars. `grammar` (GBNF) constrains what follows: at
    once, or after the first token for which `grammar_starts` returns true; it is called with each accepted token.
    `rules` hold from the end of the history on.

    The target's generators advance only when the target samples, not with drafts.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocabulary: Vocabulary | None = None,
        *,
        n_vocab: int = 0,
        history: Sequence[int] = (),
        banned: Sequence[int] = (),
        grammar: str | None = None,
        grammar_starts: Callable[[int], bool] | None = None,
        rules: AnswerRules | None = None,
    ) -> None:
        self.params = params
        seed = secrets.randbits(32) if params.seed is None else params.seed
        self.random = Random(seed).random
        """Draws drafts, and decides which are accepted. The chain has its own generator."""
        banned = sorted({*banned, *(vocabulary.suppressed if vocabulary else ())})
        self.draft_ban = tuple(banned) if params.keeps_argmax and not (grammar or rules) else None
        """The chain's top token is that of the logits without these tokens; None: it may be another."""
        self._vocabulary = vocabulary  # the native sampler reads it
        of_dry = {name: getattr(params, name) for name in _OF_DRY}
        dry = _dry_alone(vocabulary, **of_dry) if vocabulary and params.has_dry else None
        self._native = _init(params, vocabulary, n_vocab, banned, seed, dry)
        self._logits = ffi.new("struct pymtp_logits *")
        self._n_tokens, self._tokens = ffi.new("int32_t *"), ffi.new("int32_t[]", 1)
        self._result = ffi.new("struct pymtp_distribution **")
        self._grammar: str | None = None
        self._grammar_starts: Callable[[int], bool] | None = None
        self.accept(*history)
        if rules is not None:
            native_rules, _alive = rules.native()
            check(lib.pymtp_sampler_follow(self._native, native_rules))
        if grammar is not None and grammar_starts is None:
            self._constrain(grammar)
        else:
            self._grammar, self._grammar_starts = grammar, grammar_starts

    def accept(self, *tokens: int) -> None:
        """Append `tokens` to the history; tokens that were assumed are dropped."""
        if self._grammar_starts is None:
            check(lib.pymtp_sampler_accept(self._native, len(tokens), tokens))
            return
        for i, token in enumerate(tokens):
            check(lib.pymtp_sampler_accept(self._native, 1, [token]))
            if self._grammar is not None and self._grammar_starts(token):
                self._constrain(self._grammar)
                self.accept(*tokens[i + 1 :])
                return

    def assume(self, token: int) -> None:
        """Treat `token` as part of the history until `forget` or `accept`."""
        check(lib.pymtp_sampler_assume(self._native, token))

    def forget(self) -> None:
        """Drop the tokens that were assumed."""
        check(lib.pymtp_sampler_accept(self._native, 0, ffi.NULL))

    def sample(self, row: Row) -> int:
        """Draw the next token from the chain's distribution, and accept it. Raises NothingAllowed if there is none."""
        self._sample([row], _NO_DRAFT)
        token = int(self._tokens[0])
        if self._grammar is not None and self._grammar_starts and self._grammar_starts(token):
            self._constrain(self._grammar)
        return token

    def sample_until_other(self, rows: Sequence[Row], drafts: Sequence[int]) -> tuple[list[int], bool]:
        """Sample rows as `sample` does, one after another, up to the first whose token is not its draft.

        There may be a row more than drafts. Returns the tokens, and whether nothing is allowed after them. Not for
        samplers that await a grammar.
        """
        try:
            self._sample(rows, (*drafts, -1) if drafts else _NO_DRAFT)
            is_blocked = False
        except NothingAllowed:
            is_blocked = True
        return list(self._tokens[0 : self._n_tokens[0]]), is_blocked

    def _sample(self, rows: Sequence[Row], drafts: Any) -> None:
        n = len(rows)
        if len(self._tokens) < n:
            self._tokens = ffi.new("int32_t[]", n)
        check(lib.pymtp_sampler_sample(self._native, self._at(rows), n, drafts, self._n_tokens, self._tokens))

    def distribution(self, row: Row) -> Distribution:
        """The chain's distribution for a row of the target, after the accepted and assumed tokens.

        Raises NothingAllowed where it is empty.
        """
        check(lib.pymtp_sampler_apply(self._native, self._at([row])))
        return self.last_distribution

    def draft_distribution(self, row: Row) -> Distribution:
        """The chain's distribution for a row of a draft; without tokens if none of the row's can follow."""
        self._at([row]).of_draft = True
        check(lib.pymtp_sampler_apply(self._native, self._logits))
        return self.last_distribution

    @property
    def last_distribution(self) -> Distribution:
        check(lib.pymtp_sampler_result(self._native, self._result))
        return Distribution.adopt(self._result[0])

    @property
    def n_candidates(self) -> int:
        """How many of a row's highest logits the chain needs, now and for a while; 0: all of them."""
        return int(lib.pymtp_sampler_n_candidates(self._native))

    @property
    def awaits_grammar(self) -> bool:
        """Whether a grammar will apply from some later token on."""
        return self._grammar is not None

    def _constrain(self, grammar: str) -> None:
        check(lib.pymtp_sampler_constrain(self._native, grammar.encode()))
        self._grammar, self._grammar_starts = None, None

    def _at(self, rows: Sequence[Row]) -> Any:
        """The first of rows that follow one another."""
        row, logits = rows[0], self._logits
        if isinstance(row, LogitsRow):
            logits.session, logits.of_draft, logits.row = row.native_session, row.of_draft, row.row
        else:
            import numpy as np

            self._array = np.ascontiguousarray(rows, np.float32)  # must live as long as the pointer to it
            logits.session, logits.of_draft, logits.n_logits = ffi.NULL, False, self._array.shape[1]
            logits.logits = ffi.from_buffer("const float[]", self._array)
        return logits


def check_with_vocabulary(
    params: SamplingParams, grammar: str | None, vocabulary: Vocabulary, rules: AnswerRules | None = None
) -> None:
    """Raise InvalidParameter for token ids, or tokens named in a grammar, that are not in the vocabulary, and for a
    grammar that can be followed in too many ways.

    And PymtpError for rules that cannot be followed.
    """
    _biases_within(params, vocabulary.size)
    _used = vocabulary.native  # outlives the samplers, which read it
    if rules is not None:
        Sampler(SamplingParams(), vocabulary, rules=rules)
    if grammar is not None:
        try:
            Sampler(SamplingParams(), vocabulary, grammar=grammar)
        except (BackendError, Closed):
            raise
        except PymtpError as error:
            raise InvalidParameter("grammar", f"GBNF that the model can follow ({error})") from None


def _biases_within(params: SamplingParams, n_vocab: int) -> dict[int, float]:
    biases = dict(params.logit_bias)
    if any(token >= n_vocab for token in biases):
        raise InvalidParameter("logit_bias", f"token ids below {n_vocab}", value=max(biases))
    return biases


def _init(
    params: SamplingParams,
    vocabulary: Vocabulary | None,
    n_vocab: int,
    banned: Sequence[int],
    seed: int,
    dry: Any = None,
) -> Any:
    n_vocab = vocabulary.size if vocabulary else n_vocab
    biases = _biases_within(params, n_vocab) | dict.fromkeys(banned, -math.inf)

    stages = ffi.new("int32_t[]", [_STAGES[name] for name in params.samplers])
    texts = params.dry_sequence_breakers if vocabulary and params.has_dry else ()
    breaker_texts = [ffi.new("char[]", text.encode()) for text in texts]
    breakers = ffi.new("char *[]", breaker_texts)
    bias_tokens, bias_values = ffi.new("int32_t[]", list(biases)), ffi.new("float[]", list(biases.values()))
    native = ffi.new(
        "struct pymtp_sampler_params *",
        {
            "seed": seed,
            "xtc_seed": secrets.randbits(32) if params.seed is None else seed,
            "n_stages": len(stages),
            "stages": stages,
            **{name: getattr(params, _RENAMED.get(name, name)) for name in _FIELDS},
            "n_bias": len(biases),
            "bias_token": bias_tokens,
            "bias": bias_values,
            "n_breakers": len(texts),
            "breakers": breakers,
        },
    )
    native_vocabulary = vocabulary.native if vocabulary else ffi.NULL
    return made("sampler", lib.pymtp_sampler_init, n_vocab, native_vocabulary, native, dry or ffi.NULL)


@lru_cache(maxsize=4)
def _dry_alone(vocabulary: Vocabulary, **of_dry: Any) -> Any:
    """The native sampler whose DRY others copy: it looks for each breaker in every token, 7 ms for 150,000 tokens."""
    return _init(SamplingParams(samplers=("dry",), **of_dry), vocabulary, 0, (), 0)


_OF_DRY = [each.name for each in fields(SamplingParams) if each.name.startswith("dry_")]
_NO_DRAFT = ffi.new("int32_t[]", [-1])  # converting a list takes as long as the call
_STAGES = {name: getattr(lib, f"PYMTP_STAGE_{name.upper()}") for name in SAMPLERS}

_RENAMED = {
    "typ_p": "typical_p",
    "temp": "temperature",
    "penalty_last_n": "repeat_last_n",
    "penalty_repeat": "repeat_penalty",
    "penalty_freq": "frequency_penalty",
    "penalty_present": "presence_penalty",
}
_OWN = {"seed", "xtc_seed", "n_stages", "stages", "n_bias", "bias_token", "bias", "n_breakers", "breakers"}
_FIELDS = [name for name, _ in ffi.typeof("struct pymtp_sampler_params").fields if name not in _OWN]
"""The native parameters that are fields of SamplingParams, but for those that are called otherwise there."""
