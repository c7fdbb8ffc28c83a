"""The commands: what help texts say of each, by the name of the function that runs it.

Owns these texts. A command's module is imported when it is called: `pymtp --help` must not wait for what others need.
"""

COMMANDS = {
    "run": """Generate text from a prompt.

    A single argument is the model if it is an existing path or ends in .gguf, else the prompt. Without a
    prompt argument, the prompt is read from stdin. The model's chat template is applied if it has one.
    Sampling values that the model's file recommends replace the defaults below; pymtp inspect shows them.

    Examples:
    pymtp run "Write a Python function that checks whether a number is prime."
    git diff | pymtp run model.gguf -n 400 --temp 0.3
    pymtp run -m model.gguf -f prompt.txt --draft-max 2 --json
    pymtp run -hf user/repo:Q4_K_M "Hello"
    pymtp run model.gguf -q -sys "You are brief." -p "Who are you?"
    pymtp run model.gguf --draft none "Hello"
    pymtp run model.gguf --mmproj mmproj.gguf --image photo.jpg "What is this?"
    pymtp run model.gguf --reasoning-budget 200 "Primes below 30?" >answer.txt
    """,
    "chat": """Chat with a model.

    /help lists the commands. Ctrl-C stops an answer, a second one quits. From a pipe, each line is a message; a
    backslash at the end continues it on the next line. Sampling values that the model's file recommends replace the
    defaults below.

    Examples:
    pymtp chat model.gguf --color
    pymtp chat -hf user/repo:Q4_K_M -sys "You are brief."
    pymtp chat --temp 0.3 -c 8192 --draft-max 2
    pymtp chat model.gguf --resume
    printf 'Hello\\n/stats\\n' | pymtp chat
    """,
    "serve": """Serve the APIs of OpenAI, Anthropic and llama-server over HTTP.

    Flags for text, thinking and sampling are defaults: requests can override them.

    Examples:
    pymtp serve
    pymtp serve -m model.gguf --port 8080 -np 8 -c 32768
    pymtp serve -hf user/repo:Q4_K_M --api-key-file keys.txt --host 0.0.0.0
    pymtp serve --metrics --slot-save-path slots --draft-max 3
    """,
    "rpc_server": """Lend devices to pymtp on another machine (run ... --rpc HOST:PORT), one client at a time.

    Both machines need the same build. The protocol has no authentication: it belongs on a private network.

    Examples:
    pymtp rpc-server
    pymtp rpc-server --host 192.168.1.5 --port 50052 -c
    pymtp run model.gguf --rpc 192.168.1.5:50052 "..."
    """,
    "inspect": """Show a GGUF's MTP heads, drafting cost, memory and vocabulary.

    Reads headers only, also from the Hub, so it is quick for models of any size. The flags describe the context to
    estimate memory for, and where the model would go.

    Examples:
    pymtp inspect model.gguf
    pymtp inspect model-00001-of-00003.gguf -c 32768 -ctk q8_0 -ctv q8_0
    pymtp inspect -hf user/repo:Q4_K_M --json
    """,
    "bench": """Compare the speed of drafting and plain decoding.

    All arms (draft lengths, temperatures, acceptance methods) take turns on each prompt, in rotating order.
    Lists: 1,2 or 1-8 or 0-8+2 (steps of 2) or 128-1024*2 (doubling).

    Examples:
    pymtp bench model.gguf --draft-max 0-3,auto
    pymtp bench -m a.gguf,b.gguf -p 512-4096*2 -n 128 -t 4,8 -o csv > bench.csv
    pymtp bench model.gguf --temp 0,1 --prompts mine.jsonl
    pymtp bench model.gguf --synthetic 0.5,0.8 --draft-max 1-8 -p 0
    """,
    "doctor": """Print a report on this machine to paste, and check what its devices compute.

    Reads no model but the embedded one, sends nothing, and shows no user names. Exit code 1: something is wrong.

    Examples:
    pymtp doctor
    pymtp doctor > report.txt
    """,
}
"""Each in a module of its own name."""

HEADS = {
    "extract": """Write a model's MTP heads to a file of their own.

    They are copied unchanged. The file drafts for a GGUF of the model without heads: it is found next to that as
    mtp-*.gguf, else use --draft-model.

    Examples:
    pymtp heads extract model.gguf
    pymtp heads extract model.gguf -o mtp-heads.gguf --bare
    """,
    "attach": """Join a model and MTP heads in one file.

    MODEL has no heads; HEADS is a file with heads alone; heads of another model are refused. If MODEL has several
    files, name the first.

    Examples:
    pymtp heads attach model.gguf mtp-model.gguf -o whole.gguf
    """,
    "quantize": """Write MTP heads in types of fewer bits.

    MODEL is a model, or a file with its heads alone. The heads' matrices get other types. Everything else stays as it
    is, bit for bit: the trunk, norms, biases and routers. Text does not change, only how many drafts are right, and how
    much drafts read. Start from the most precise file you have: what is lost stays lost.

    Examples:
    pymtp heads quantize model.gguf -o smaller.gguf --type q4_k
    pymtp heads quantize heads.gguf -o small.gguf --type q8_0 --experts-type q4_k
    pymtp heads quantize model.gguf -o smaller.gguf --tensor-type attn_.*=q6_k
    """,
    "train": """Train an MTP head for a model that has none.

    One layer learns to predict what the model writes next, from texts and the model's own answers. Needs PyTorch: pip
    install 'pymtp-gguf[train]'. Ctrl-C, or a loss of power, loses a minute at most: the same command continues.

    Examples:
    pymtp heads train model.gguf --minutes 60
    pymtp heads train model.gguf --data notes.txt --data prompts.jsonl
    pymtp heads train finetune.gguf --init mtp-model.gguf --minutes 10
    """,
}
"""Those of `pymtp heads`, in heads.py."""
