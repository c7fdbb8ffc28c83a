"""llama-server's command line: flags that are other ones here, are not needed or are refused, and its variables.

Owns the tables; a test compares them with the pinned llama.cpp's own, and docs/llama-server.md shows them. Knows names
and texts only.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase

Table = Mapping[str, str]


def table(text: str) -> dict[str, str]:
    """Each name before the colon of a line, where * stands for any letters, and what follows the colon."""
    rows = (line.partition(":") for line in text.strip().splitlines())
    return {name: meaning.strip() for names, _, meaning in rows for name in names.split()}


def found(meanings: Table, name: str) -> str | None:
    """What a table has under `name`."""
    return next((meaning for pattern, meaning in meanings.items() if fnmatchcase(name, pattern)), None)


MEANS = table("""
--log-verbose: --verbose
--predict: --n-predict
--webui: --ui
--no-webui: --no-ui
--mmap: --load-mode mmap
--no-mmap: --load-mode none
--mlock: --load-mode mmap+mlock
-dio --direct-io: --load-mode dio
--spec-default: --draft auto
--spec-draft-model: --draft-model
""")
"""Flags, and the flags that do the same here."""

_COLOR = {"on": ["--color"], "auto": ["--color"], "off": []}
"""What a word after --color means; pymtp's has none."""
_DRAFT_THREADS = "the model's threads compute drafts"
_DRAFT_PLACE = "heads are where the model's layers are"
IGNORED = table(f"""
-cb --cont-batching -nocb --no-cont-batching: requests always share passes
--warmup --no-warmup: the first request does not wait for one
--jinja --no-jinja: chat templates are always rendered with Jinja
-e --escape --no-escape: prompts are taken as they are, and --stop knows \\n
--perf --no-perf: times are always reported
--swa-full: caches with a window keep what drafts need
--props: each request has its own settings
--repack -nr --no-repack: there are kernels for both forms of weights
--no-host --op-offload --no-op-offload -bs --backend-sampling: devices compute what they can
--spec-draft-backend-sampling --no-spec-draft-backend-sampling: devices pick drafts where that changes nothing
--mmproj-auto --no-mmproj --no-mmproj-auto: a projector is loaded where --mmproj names one
--cache-idle-slots --no-cache-idle-slots: --cache-ram keeps the prompts of idle slots
--log-jsonl --no-log-jsonl --log-file=: only serve has a log
--log-disable: --quiet leaves out all but warnings and errors
--log-prefix --no-log-prefix --log-timestamps --no-log-timestamps: a line of the log begins with its time and level
-no-ag --no-agent --no-ui-mcp-proxy --no-webui-mcp-proxy: a server runs no tools
--models-autoload --no-models-autoload: a server has one model
--prefill-assistant: an assistant's last message is continued
--no-skip-chat-parsing: answers are always parsed
-ndio --no-direct-io: it is off unless --load-mode dio is given
-dt= --defrag-thold=: the cache has no gaps that matter
-ctxcp= --ctx-checkpoints= --swa-checkpoints= -cms= --checkpoint-min-step=: states are kept as drafts need them
-sps= --slot-prompt-similarity=: a prompt goes to the slot that holds most of it
--cache-reuse=: what a slot holds is used again from its beginning
--threads-http=: one thread serves all connections
--sleep-idle-seconds=: a server keeps its model
--log-colors=: the log has no colours
-lv= --verbosity= --log-verbosity=: --verbose shows llama.cpp's log
--mtmd-batch-max-tokens=: images are computed one by one
-lzm= --lazy-mode=: --load-mode says how a file is read
--ui-config= --webui-config= --ui-config-file= --webui-config-file=: the page has settings of its own
--spec-draft-p-split= --draft-p-split=: drafts are not trees
--spec-ngram-*= -lcs= --lookup-cache-static= -lcd= --lookup-cache-dynamic=: drafts by lookup need no settings
--prio= --prio-batch=: nice and chrt set priorities of processes
--poll= --poll-batch=: threads poll only briefly for work
--cpu-strict-batch=: --cpu-strict is for prompts too
-td= -tbd= --threads-*draft= --spec-draft-threads*= -Cd= -Crd= -Cbd= --cpu-*-draft=: {_DRAFT_THREADS}
--prio*-draft= --poll*-draft= --spec-draft-cpu-[!m]*= --spec-draft-cpu-mask*=: {_DRAFT_THREADS}
--spec-draft-prio*= --spec-draft-poll*=: {_DRAFT_THREADS}
--spec-draft-type-?= -ctkd= -ctvd= --cache-type-?-draft=: heads use the model's cache
-ngld= --spec-draft-ngl= --*gpu-layers-draft= -devd= --spec-draft-device= --device-draft=: {_DRAFT_PLACE}
-cmoed --spec-draft-cpu-moe --cpu-moe-draft -otd= --spec-draft-override-tensor= --override-tensor-draft=: {_DRAFT_PLACE}
-ncmoed= --spec-draft-n-cpu-moe= --spec-draft-ncmoe= --n-cpu-moe-draft=: {_DRAFT_PLACE}
""")
"""Flags that change nothing here, and why; those with a value end with =."""

REFUSED = table("""
-cnv -no-cnv --*conversation -i --interactive* -if -st --single-turn: leave it out: run answers once, chat converses
-mli --multiline-input: leave it out: in pymtp chat, Alt-Enter or a backslash at the end starts a new line
-sysf --system-prompt-file: use --system-prompt "$(cat FILE)"
-bf --binary-file: run has --file
--in-prefix --in-prefix-bos --in-suffix: leave it out: the chat template writes them
--keep --context-shift --no-context-shift: a text ends where the context is full (-c)
--rerank* --pooling --embd-* -embd --embedding*: a server generates texts
--prompt-cache*: the server's --cache-dir keeps prompts
--reasoning-budget-message: the thinking is closed by its tag alone
-sp --special -ptc --print-token-count --verbose-prompt: run --json shows tokens
--display-prompt --no-display-prompt --simple-io: leave it out: only the answer is printed
--show-timings --no-show-timings: run prints statistics unless --quiet is given
--log-prompts-dir: prompts are not written to files
--log-*: --verbose shows llama.cpp's log on stderr
--skip-chat-parsing: --raw uses no chat template
--no-prefill-assistant: an assistant's last message is continued
--reasoning-preserve --no-reasoning-preserve: use --chat-template-kwargs {"preserve_reasoning": ...}
--reuse-port: a port has one server
--path: the page is the server's own
--media-path: images come in the request
--spm-infill: the prefix comes before the suffix
--check-tensors: rows that are not finite end a text with an error
--version: pymtp -V prints it
--completion-bash: pymtp has completion of its own
--reasoning-format: thinking goes to stderr; --json has it with the text
--reasoning-effort: use --chat-template-kwargs {"reasoning_effort": ...}
-mu --model-url -hff --hf-file -hfr -dr --docker-repo: use --hf-repo USER/REPO:QUANT, or download the file
-hft --hf-token: set the environment variable HF_TOKEN
--spec-draft-hf -hfd -hfrd --hf-repo-draft: download the file, and name it with --draft-model
--control-vector*: merge it into the model first
-mmdev --mmproj-device --*mmproj-offload: the projector is on a GPU, unless -ngl 0 or --device none keeps all off it
-mmu --mmproj-* --no-mmproj*: use --mmproj FILE
--audio --video*: models read text and images only
-mmp: use --load-mode none, mmap, mlock, mmap+mlock or dio
-ncffn --n-cpu-ffn: use --override-tensor
-fitp --fit-print: pymtp inspect shows what goes where
-gan --grp-attn-n -gaw --grp-attn-w: the model's metadata decides
--draft-n: use --draft-max
--draft-n-min: use --draft-min
--override-tensor-* --spec-draft-n* --spec-draft-o*: heads are where --override-tensor puts them
-ag -no-ag --*agent --tools* --*mcp-*: the only tools are those of requests
--models-* --no-models-autoload -cl --cache-list: a server has one model: --model or --hf-repo
--fim-* --gpt-oss-* --vision-gemma-*: use --hf-repo USER/REPO:QUANT
--kv-unified-per-slot: see --kv-unified
""")
"""Other flags, and what to use instead."""

VARIABLES = {
    "--metrics": "LLAMA_ARG_ENDPOINT_METRICS",
    "--api-key": "LLAMA_API_KEY",
    "--slots": "LLAMA_ARG_ENDPOINT_SLOTS",
    "--rope-scaling": "LLAMA_ARG_ROPE_SCALING_TYPE",
    "--reasoning-format": "LLAMA_ARG_THINK",
    "--reasoning-budget": "LLAMA_ARG_THINK_BUDGET",
    "--draft-model": "LLAMA_ARG_SPEC_DRAFT_MODEL",
    "--parallel": "LLAMA_ARG_N_PARALLEL",
    "--batch-size": "LLAMA_ARG_BATCH",
    "--ubatch-size": "LLAMA_ARG_UBATCH",
}
"""The variables of flags that do not have llama.cpp's usual name."""


def ignored(name: str) -> tuple[str, int] | None:
    """Why a flag changes nothing here, and how many values it has; None: it is not one of these."""
    hints = enumerate((found(IGNORED, name), found(IGNORED, f"{name}=")))
    return next(((why, n) for n, why in hints if why), None)


def variables(flags: Sequence[str]) -> list[str]:
    """llama.cpp's variables of a flag, by its names."""
    long = [flag for flag in flags if re.match("--(?!no-|draft$)", flag)]
    named = [VARIABLES[flag] for flag in long if flag in VARIABLES]
    return named or ["LLAMA_ARG_" + flag.lstrip("-").upper().replace("-", "_") for flag in long]


def translated(
    args: Sequence[str], known: Collection[str], n_values: Mapping[str, int], say: Callable[[str], object]
) -> list[str]:
    """A command line with pymtp's flags alone, as far as llama-server's have a meaning here.

    `known`: the command's flags; `n_values`: how many values follow each. `say` gets a line for each flag that is left
    out.
    """
    result: list[str] = []
    left = list(args)
    while left:
        argument = left.pop(0)
        if argument == "--":
            return [*result, argument, *left]
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")  # llama.cpp takes both
        if name in ("-co", "--color") and left and left[0] in _COLOR:
            result += _COLOR[left.pop(0)]
            continue
        nothing = None if name in known else ignored(name)
        why, n = nothing or ("", n_values.get(name, 0))
        values = [left.pop(0) for _ in range(0 if equals else min(n, len(left)))]
        if why:
            say(f"{name} changes nothing here: {why}")
        else:
            *words, last = MEANS[name].split() if name in MEANS else [name]
            result += [*words, last + equals + value, *values]
    return result


def from_variables(
    environment: Mapping[str, str], read: Collection[str], known: Collection[str], say: Callable[[str], object]
) -> list[str]:
    """Flags of llama-server's variables that no flag of pymtp has.

    `read`: the variables that one has; `known`: the command's flags.
    """
    result: list[str] = []
    for variable, value in environment.items():
        if not variable.startswith("LLAMA_ARG_") or variable in read:
            continue
        name = variable.removeprefix("LLAMA_ARG_")
        flag, negated = f"--{_flag_name(name)}", f"--no-{_flag_name(name.removeprefix('NO_'))}"
        if name.startswith("NO_") and negated in known:
            result.append(negated)
        elif flag in MEANS:
            word = flag if value.lower() in _TRUE else "--no-" + flag[2:]
            result += [word] if value and word in MEANS else []
        elif not ignored(flag):
            say(f"{variable} is not read: " + (f"use {flag}" if flag in known else f"pymtp has no {flag}"))
    return result


def _flag_name(name: str) -> str:
    """A flag without its dashes, by its variable without LLAMA_ARG_."""
    named = next((flag[2:] for flag, variable in VARIABLES.items() if variable == f"LLAMA_ARG_{name}"), None)
    return named or name.lower().replace("_", "-")


_TRUE = ("1", "true", "on", "yes", "enabled")
