"""What to answer to a flag or a command that pymtp does not have.

Owns three tables: the flags of llama.cpp that pymtp lacks, with what to use instead, and other names for the flags and
commands that it has. Knows names only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase

_SIMILAR = 0.75  # of difflib; at 0.6, its default, names that only look alike are close

LLAMA_CPP: dict[str, str] = {
    # programs
    "-cnv --conversation -no-cnv --no-conversation -i --interactive -if --interactive-first -st --single-turn": (
        "leave it out: pymtp run answers one prompt, pymtp chat converses"
    ),
    "-mli --multiline-input": "leave it out: in pymtp chat, Alt-Enter or a backslash at the end starts a new line",
    "-sysf --system-prompt-file": 'use --system-prompt "$(cat FILE)"',
    "-bf --binary-file": "use --file",
    "-e --escape --no-escape": "leave it out: prompts are taken as they are, and --stop knows \\n",
    "--in-prefix --in-prefix-bos --in-suffix": "leave it out: the chat template writes them",
    "--keep --context-shift --no-context-shift": "a text ends where the context is full (-c)",
    "--prompt-cache --prompt-cache-all --prompt-cache-ro -ctxcp --ctx-checkpoints": "",
    "-sp --special -ptc --print-token-count --verbose-prompt": "--json shows the tokens",
    "--display-prompt --no-display-prompt --simple-io": "leave it out: only the answer is printed",
    "--perf --no-perf --show-timings --no-show-timings": "run prints statistics unless --quiet is given",
    "--warmup --no-warmup": "leave it out: only pymtp bench warms up",
    "-v --log-verbose -lv --verbosity --log-verbosity": "use --verbose",
    "--log-*": "--verbose shows llama.cpp's log on stderr",
    # chat templates and thinking
    "--jinja --no-jinja": "leave it out: chat templates are always rendered with Jinja",
    "--skip-chat-parsing --prefill-assistant": "--raw uses no chat template",
    "--reasoning-format": "thinking is apart: on stderr, and beside the text with --json",
    "--reasoning-effort": 'use --chat-template-kwargs {"reasoning_effort": ...}',
    "--reasoning-budget-message --reasoning-preserve --no-reasoning-preserve": "",
    # files
    "-mu --model-url -hff --hf-file -hfr -dr --docker-repo": "use --hf-repo USER/REPO:QUANT, or download the file",
    "-hft --hf-token": "set the environment variable HF_TOKEN",
    "--spec-draft-hf -hfd -hfrd --hf-repo-draft": "download the file, and name it with --draft-model",
    "--control-vector*": "merge it into the model first",
    "-mmu --mmproj-* --no-mmproj*": "use --mmproj FILE",
    "--audio --video*": "models read text and images only",
    "--mlock --mmap --no-mmap -mmp -dio --direct-io": "use --load-mode none, mmap, mlock, mmap+mlock or dio",
    "-lzm --lazy-mode --no-host": "",
    "--override-kv --check-tensors -nr --repack --no-repack": "",
    # devices
    "-ncffn --n-cpu-ffn": "use --override-tensor",
    "-fitp --fit-print": "pymtp inspect shows what goes where",
    "-kvo --kv-offload -nkvo --no-kv-offload -nopo --op-offload --no-op-offload": "",
    # context
    "--rope-* --yarn-* -gan --grp-attn-n -gaw --grp-attn-w": "the model's metadata decides",
    "-dt --defrag-thold --swa-full": "leave it out",
    "-cb --cont-batching -nocb --no-cont-batching": "leave it out: pymtp serve always does it",
    # sampling
    "--predict": "use --n-predict",
    "-bs --backend-sampling --spec-draft-backend-sampling --no-spec-draft-backend-sampling": "",
    # drafting
    "--spec-draft-model": "use --draft-model",
    "--draft-n": "use --draft-max",
    "--draft-n-min": "use --draft-min",
    "--spec-type --spec-default --spec-ngram-* -lcs --lookup-cache-static -lcd --lookup-cache-dynamic": (
        "see --draft and --draft-lookup"
    ),
    "--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-device -devd --device-draft": (
        "heads are where --gpu-layers and --override-tensor put them"
    ),
    "--spec-draft-cpu-moe -cmoed --cpu-moe-draft -ncmoed -otd": (
        "heads are where --gpu-layers and --override-tensor put them"
    ),
    "--spec-draft-threads* -td --threads-draft -tbd --threads-batch-draft": "--threads is for drafting as well",
    (
        "-Cd -Crd -Cbd -Crbd --spec-draft-cpu-* --cpu-*-draft --spec-draft-prio* --prio*-draft "
        "--spec-draft-poll* --poll*-draft"
    ): "drafts are computed by the threads of --threads, --cpu-mask and the like",
    "--spec-draft-type-k -ctkd --cache-type-k-draft": "--cache-type-k is for the heads as well",
    "--spec-draft-type-v -ctvd --cache-type-v-draft": "--cache-type-v is for the heads as well",
    "--spec-draft-p-split --draft-p-split": "",
    "--override-tensor-draft --spec-draft-override-tensor": "heads are where --override-tensor puts them",
    "--n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe": "heads are where --override-tensor puts them",
    # llama-server
    "--rerank --reranking --pooling --embd-*": "",
    "-ag --agent -no-ag --no-agent --tools --tools-runtime --mcp-*": "the only tools are those of requests",
    "--ui-mcp-proxy --no-ui-mcp-proxy --webui-mcp-proxy --no-webui-mcp-proxy": "the only tools are those of requests",
    "--models-* --no-models-autoload -cl --cache-list": "a server has one model: --model or --hf-repo",
    "--fim-* --gpt-oss-* --vision-gemma-*": "use --hf-repo USER/REPO:QUANT",
    "--webui --no-webui": "the page has --ui",
    "--ui-config* --webui-config* --path --api-prefix": "",
    "--cors-methods --cors-headers --cors-credentials --no-cors-credentials": "use --cors-origins",
    "--props": "each request has its own settings",
    "-sps --slot-prompt-similarity": "a prompt goes to the slot that holds most of it",
    "--cache-reuse --cache-idle-slots --no-cache-idle-slots --kv-unified-per-slot": "see --cache-ram and --kv-unified",
    "-cms --checkpoint-min-step --swa-checkpoints": "",
    "--threads-http --reuse-port --sse-ping-interval --sleep-idle-seconds --media-path --spm-infill": "",
    "--mtmd-batch-max-tokens -mmdev": "",
    "--no-log-*": "--verbose shows llama.cpp's log on stderr",
    "--no-prefill-assistant --no-skip-chat-parsing": "",
    # llama-bench
    "-embd --embeddings --embedding": "",
    "--delay": "",
}
"""Names of flags, where * is any ending, and what to use instead; "": nothing."""

MEANT: dict[str, str] = {
    "--system --sys --system-message": "--system-prompt",
    "--user --text --message": "--prompt",
    "--prompt-file --input --input-file": "--file",
    "--ctx --context --context-size --context-length --n-ctx --num-ctx --max-context": "--ctx-size",
    "--max-tokens --max-new-tokens --num-tokens --num-predict --tokens --length": "--n-predict",
    "--num-threads --cpus": "--threads",
    "--gpu --gpus --ngl": "--gpu-layers",
    "--kv-type --cache-type": "--cache-type-k",
    "--repetition-penalty --rep-pen": "--repeat-penalty",
    "--stop-sequence --stop-string --stop-word": "--stop",
    "--schema --format": "--json-schema",
    "--gbnf": "--grammar",
    "--random-seed": "--seed",
    "--greedy": "--temp 0",
    "--no-draft --no-mtp --no-drafts --no-speculation": "--draft none",
    "--mtp --speculative": "--draft mtp",
    "--num-speculative-tokens --num-drafts --n-draft --draft-length --draft-tokens --k": "--draft-max",
    "--heads --drafter --assistant": "--draft-model",
    "--silent --no-stats": "--quiet",
    "--no-template --no-chat-template --completion": "--raw",
    "--think --thinking --enable-thinking": "--reasoning on",
    "--no-think --nothink --no-thinking --disable-thinking": "--reasoning off",
    "--hide-thinking --hidethinking": "--quiet",
    "--thinking-budget --think-budget --max-thinking-tokens": "--reasoning-budget",
    "--probs --n-probs --log-probs": "--logprobs",
    "--repo --huggingface": "--hf-repo",
    "--colour": "--color",
    "--reps --repeat": "--repetitions",
}
"""Other names for flags, and the flags."""


COMMANDS: dict[str, str] = {
    "help": "pymtp --help",
    "version": "pymtp --version",
    "generate complete completion prompt llama-completion": "pymtp run",
    "cli llama-cli talk interactive repl": "pymtp chat",
    "server llama-server api": "pymtp serve",
    "benchmark llama-bench perf speed": "pymtp bench",
    "info show gguf-dump": "pymtp inspect",
    "pull download get search list ls": "pymtp run -hf USER/REPO, which downloads a model once",
}
"""Other names for commands, and what to type."""


def meant_command(name: str) -> str | None:
    """What to type instead of the command `name`, if that is known."""
    return _found(COMMANDS, name)


def unknown_flag(argument: str, known: Collection[str]) -> str | None:
    """The flag in an argument that begins with a dash, if it is not among `known`.

    A value may follow a single letter without a space (-n5), but not one that begins with a letter: -sys is a flag.
    """
    name = argument.partition("=")[0]
    if name in known:
        return None
    has_value = not name.startswith("--") and not re.match("-[^-][^\\W\\d]", name)
    return None if has_value and argument[:2] in known else name


def answer(name: str, known: Collection[str], others: Mapping[str, Collection[str]]) -> str:
    """What to say about the flag `name`. `known`: those of the command; `others`: those of the other commands."""
    having = [f"pymtp {command}" for command, flags in others.items() if name in flags]
    elsewhere = f"; {' and '.join(having)} {'has' if len(having) == 1 else 'have'} it" if having else ""
    hint = _found(LLAMA_CPP, name)
    if hint is not None:
        return f"{name} of llama.cpp is not supported here" + (f": {hint}" if hint else "") + elsewhere
    if elsewhere:
        return f"No such option: {name}{elsewhere}"
    meant = _found(MEANT, name)
    if meant is None or meant.split()[0] not in known:
        meant = next(iter(get_close_matches(name, known, n=1, cutoff=_SIMILAR)), None)
    return f"No such option: {name}" + (f"; did you mean {meant}?" if meant else "")


def answer_before_command(name: str, others: Mapping[str, Collection[str]]) -> str:
    """What to say about the flag `name` in the place of a command. `others`: the flags of the commands."""
    if name == "-v":
        return "No such option: -v; did you mean -V?"
    having = [f"pymtp {command}" for command, flags in others.items() if name in flags]
    return f"a command comes before {name}: {' or '.join(having)}" if having else f"No such option: {name}"


def _found(table: Mapping[str, str], name: str) -> str | None:
    """What a table has under `name`."""
    rows = ((pattern, meaning) for names, meaning in table.items() for pattern in names.split())
    return next((meaning for pattern, meaning in rows if fnmatchcase(name, pattern)), None)
