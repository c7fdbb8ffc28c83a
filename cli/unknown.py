"""What to answer to a flag or a command that pymtp does not have.

Owns tables of other names for the flags and commands that it has; difflib finds misspelt ones. Knows names only.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from .llama_cpp import REFUSED, found, table

_SIMILAR = 0.75  # of difflib; at 0.6, its default, names that only look alike are close

MEANT = table("""
--system --sys --system-message: --system-prompt
--ctx --context --context-size --context-length --n-ctx --num-ctx --max-context: --ctx-size
--max-tokens --max-new-tokens --num-tokens --num-predict --tokens --length: --n-predict
--num-threads --cpus: --threads
--gpu --gpus --ngl: --gpu-layers
--repetition-penalty --rep-pen: --repeat-penalty
--stop-sequence --stop-string --stop-word: --stop
--schema --format: --json-schema
--greedy: --temp 0
--no-draft --no-mtp --no-drafts --no-speculation: --draft none
--mtp --speculative: --draft mtp
--num-speculative-tokens --num-drafts --n-draft --draft-length --draft-tokens --k: --draft-max
--heads --drafter --assistant: --draft-model
--silent --no-stats: --quiet
--no-template --no-chat-template --completion: --raw
--think --thinking --enable-thinking: --reasoning on
--no-think --nothink --no-thinking --disable-thinking: --reasoning off
--thinking-budget --think-budget --max-thinking-tokens: --reasoning-budget
--probs --n-probs --log-probs: --logprobs
--repo --huggingface: --hf-repo
""")
"""Other names for flags, and the flags."""

MEANT_COMMANDS = table("""
help: pymtp --help
version: pymtp --version
generate complete completion prompt llama-completion: pymtp run
cli llama-cli talk interactive repl: pymtp chat
server llama-server api: pymtp serve
benchmark llama-bench perf speed: pymtp bench
info show gguf-dump: pymtp inspect
pull download get search list ls: pymtp run -hf USER/REPO, which downloads a model once
""")
"""Other names for commands, and what to type."""


def unknown_flag(argument: str, known: Collection[str]) -> str | None:
    """The flag in an argument that begins with a dash, if it is not among `known`.

    A value may follow a single letter without a space (-n5), but not one that begins with a letter: -sys is a flag.
    """
    name = argument.partition("=")[0]
    if name in known:
        return None
    has_value = not name.startswith("--") and not re.match("-[^-][^\\W\\d]", name)
    return None if has_value and argument[:2] in known else name


def values_of_flags(params: Sequence[Any]) -> dict[str, int]:
    """How many values follow each flag."""
    return {flag: param.nargs for param in params if not getattr(param, "is_flag", True) for flag in param.opts}


def first_unknown(args: Sequence[str], params: Sequence[Any], known: Collection[str], *, ends: bool) -> str | None:
    """The first flag in a command line that is not among `known`. `ends`: the first argument ends the flags.

    The parser itself would take the letters of -sys for the short flags -s, -y and -s, and a value that ends them.
    """
    n_values = values_of_flags(params)
    rest = iter(args)
    for argument in rest:
        if argument == "--" or (ends and not argument.startswith("-")):
            return None
        if argument.startswith("-") and len(argument) > 1 and (name := unknown_flag(argument, known)):
            return name
        for _ in range(n_values.get(argument, 0)):
            next(rest, None)
    return None


def answer(name: str, known: Collection[str], others: Mapping[str, Collection[str]]) -> str:
    """What to say about the flag `name`. `known`: those of the command; `others`: those of the other commands."""
    having = [f"pymtp {command}" for command, flags in others.items() if name in flags]
    elsewhere = f"; {' and '.join(having)} {'has' if len(having) == 1 else 'have'} it" if having else ""
    hint = found(REFUSED, name)
    if hint is not None:
        return f"{name} of llama.cpp is not supported here" + (f": {hint}" if hint else "") + elsewhere
    if elsewhere:
        return f"No such option: {name}{elsewhere}"
    meant = MEANT.get(name)
    if meant is None or meant.split()[0] not in known:
        meant = next(iter(get_close_matches(name, known, n=1, cutoff=_SIMILAR)), None)
    return f"No such option: {name}" + (f"; did you mean {meant}?" if meant else "")


def answer_before_command(name: str, others: Mapping[str, Collection[str]]) -> str:
    """What to say about the flag `name` in the place of a command. `others`: the flags of the commands."""
    having = [f"pymtp {command}" for command, flags in others.items() if name in flags]
    if having and name != "-v":  # --version
        return f"a command comes before {name}: {' or '.join(having)}"
    return f"No such option: {name}" + ("; did you mean -V?" if name == "-v" else "")
