"""All flags of all commands, under llama.cpp's names, in the groups and the order in which help texts show them.

Owns names, help texts, defaults and which command takes what; docs/cli.md is generated from it. What can be checked
without a model is checked here, so that it shows before a prompt is asked for; pymtp checks the rest and raises
InvalidParameter, whose name app.py looks for here: parameters are named as in pymtp. A flag takes two lines: the
formatter, which would give it ten, is off.
"""

from functools import partial
from pathlib import Path
from typing import Any, get_args

from pymtp.errors import INT_MAX
from pymtp.gguf.types import CACHE_TYPES, WRITABLE_TYPES
from pymtp.loading.params import LoadMode, Numa, SplitMode
from pymtp.sampling.params import SAMPLERS, SamplingParams
from pymtp.server.settings import ServerSettings

from . import parsers
from .flags import REQUIRED, Flag
from .output import show_devices
from .parsers import OneOf, Several, integer, listed, number, numbers, zero_or_one

FORMATS = ("none", "md", "csv", "json", "jsonl")
ACCEPT = ("auto", "match", "rejection", "rejection-tokenwise")

_THREADS_MAX = 512  # ggml takes no more
_ON = ("on", "off", "auto")
_ON_WORDS = {"1": "on", "true": "on", "enabled": "on", "0": "off", "false": "off", "disabled": "off", "-1": "auto"}
"""llama.cpp's other words for flash attention."""

_GENERATING = "run chat serve"
_LOADING = f"{_GENERATING} bench"
_PLACING = f"{_LOADING} inspect"
_HEADS = "extract attach quantize train"


def _sampling(parse: parsers.Parser, name: str, usage: str, help: str, **more: Any) -> Flag:
    """A flag without a default, as a model may recommend other values than SamplingParams has: its help shows those."""
    default = getattr(SamplingParams, name, None)
    return _flag(name, usage, parse, help + f"  [default: {default}]" * isinstance(default, (int, float)), **more)


_flag = partial(Flag, on=_GENERATING)
_run, _serve = partial(Flag, on="run"), partial(Flag, on="serve")
_train = partial(Flag, on="train")
_load, _place = partial(Flag, on=_LOADING), partial(Flag, on=_PLACING)
_bench, _lists = partial(Flag, on="bench"), partial(Flag, on="bench", is_list=True)


def _several(name: str, usage: str, parse: parsers.Parser, help: str, default: Any = None) -> Flag:
    """A flag of bench that takes several values, with commas between them."""
    return _lists(name, usage, Several(parse), help, default=() if default is None else (str(default),))


def _varied(name: str, usage: str, parse: parsers.Parser, help: str, *, default: Any = None, **more: Any) -> list[Flag]:
    """A flag with one value, and the same one of bench."""
    return [_flag(name, usage, parse, help, default=default, **more), _several(name, usage, parse, help, default)]


_number = partial(_sampling, number(float))
_count = partial(_sampling, number(int))

# fmt: off
TABLE: dict[str, list[Flag]] = {
    "": [
        _flag("model", "MODEL", Path, on=_HEADS, default=REQUIRED),
        _flag("heads", "HEADS", Path, on="attach", default=REQUIRED),
        _flag("model", "MODEL", str, on="chat serve inspect bench"),
        _run("first", "MODEL", str),
        _run("second", "PROMPT", str),
    ],
    "Model": [
        _flag("model_file", "-m --model MODEL", str,
              "GGUF file.  [default: the embedded model]", on=f"{_GENERATING} inspect"),
        _lists("model_file", "-m --model MODEL,...", parsers.paths, "GGUF files.  [default: the embedded model]"),
        _place("hf", "-hf --hf-repo USER/REPO[:QUANT]", str,
               "Model from Hugging Face, downloaded once. QUANT defaults to Q4_K_M, else Q8_0, else the first file."),
        _place("offline", "--offline", help="With -hf: use an earlier download, no network."),
        *_varied("n_gpu_layers", "-ngl --gpu-layers --n-gpu-layers N|auto|all", parsers.gpu_layers,
                 "Layers on the GPU, counted from the last one; auto: as many as fit (-1); all: -2.",
                 default=-1, on=f"{_GENERATING} inspect"),
        *_varied("n_threads", "-t --threads N", integer(1, _THREADS_MAX),
                 "CPU threads.  [default: one per physical core]", on=f"{_GENERATING} rpc-server"),
    ],
    "Adapters": [
        _load("lora", "--lora FILE,...", parsers.items, "LoRA adapters, for trunk and MTP heads.", many=True),
        _load("lora_scaled", "--lora-scaled FILE:SCALE,...", parsers.scaled_files,
              "LoRA adapters with scales other than 1; numbered after those of --lora.", many=True),
        _serve("lora_init_without_apply", "--lora-init-without-apply",
               help="Load LoRA adapters with a scale of 0: requests, or POST /lora-adapters, set it."),
    ],
    "Images": [
        _flag("mmproj", "-mm --mmproj FILE", str, "GGUF file of the projector of a model that takes images."),
        _run("image", "--image FILE", str, many=True,
             help="An image (JPEG, PNG, BMP, GIF) before the text, or where it has <__media__>; repeatable."),
        _flag("image_min_tokens", "--image-min-tokens N", integer(1),
              "Minimum tokens per image, where any size is accepted.  [default: as the projector's file says]"),
        _flag("image_max_tokens", "--image-max-tokens N", integer(1), "Maximum tokens per image."),
    ],
    "Devices": [
        _flag("device", "-dev --device NAME,...", parsers.devices,
              "Devices that take layers; none: the CPU alone.  [default: all GPUs]", on=f"{_PLACING} rpc-server"),
        _place("split_mode", "-sm --split-mode", OneOf(get_args(SplitMode)), default="layer",
               help="Several devices: one takes all (none), each takes layers (layer) or tensor parts (row, tensor)."),
        _place("tensor_split", "-ts --tensor-split N,...", listed(float, "shares such as 3,1"),
               "The share of each device, such as 3,1.  [default: by free memory]"),
        _place("main_gpu", "-mg --main-gpu I", integer(0), "With -sm none: which device, counted from 0.", default=0),
        _place("fit", "-fit --fit", OneOf(("on", "off")), default="on",
               help="Keep on the CPU what does not fit the devices, unless other flags say what goes where."),
        _place("fit_target", "-fitt --fit-target MIB,...", listed(integer(0)),
               "MiB that --fit leaves free on each device; the last applies to all further devices.  [default: 1024]"),
        _place("fit_ctx", "-fitc --fit-ctx N", integer(1),
               "The smallest context that --fit may choose, where -c is not given.", default=4096),
        _place("load_mode", "-lm --load-mode", OneOf(get_args(LoadMode)),
               "How the file is read; auto: mapped, where devices allow it.", default="auto"),
        _place("list_devices", "--list-devices", help="List the devices there are, and exit.", callback=show_devices),
    ],
    "Tensors and metadata": [
        _place("override_kv", "--override-kv KEY=TYPE:VALUE,...", parsers.metadata, is_list=True,
               help="Metadata in place of the file's: int, float, bool or str, such as "
               "tokenizer.ggml.add_bos_token=bool:false."),
        _place("override_tensor", "-ot --override-tensor PATTERN=BUFFER,...", parsers.overrides,
               "Put tensors whose names match PATTERN into a buffer type, such as CPU; the first match wins."),
        _place("cpu_moe", "-cmoe --cpu-moe", help="Keep all experts on the CPU, those of the MTP heads too."),
        _place("n_cpu_moe", "-ncmoe --n-cpu-moe N", integer(0),
               "Keep the experts of the first N layers on the CPU.", default=0),
        _place("moe_cache_mib", "--moe-cache-mib N", integer(0),
               "MiB of GPU memory for recently used experts of layers whose experts stay on the CPU.", default=0),
    ],
    "Processors": [
        _load("cpu_mask", "-C --cpu-mask HEX", str,
              "Processors that threads run on, as a hexadecimal number: bit 0 is processor 0.  [default: any]"),
        _load("cpu_range", "-Cr --cpu-range FIRST-LAST", str, "Same, as a range (0-3); combined with -C."),
        _load("cpu_strict", "--cpu-strict 0|1", zero_or_one, "1: each thread has a processor to itself.", default=0),
        _place("numa", "--numa", OneOf(get_args(Numa)),
               "How threads are spread over the machine's NUMA nodes.", default="off"),
    ],
    "Processors for prompts": [
        _load("n_threads_batch", "-tb --threads-batch N", integer(1, _THREADS_MAX),
              "CPU threads for prompts.  [default: as -t]"),
        _load("cpu_mask_batch", "-Cb --cpu-mask-batch HEX", str,
              "Processors for prompts.  [default: as for drafts and rounds]"),
        _load("cpu_range_batch", "-Crb --cpu-range-batch FIRST-LAST", str, "Same, as a range; combined with -Cb."),
    ],
    "Other machines": [
        # eager: --list-devices comes after it, wherever that stands, and shows its devices too
        _place("rpc", "--rpc HOST:PORT,...", listed(str.strip),
               "Servers (pymtp rpc-server) on a private network, whose devices take layers too.", is_eager=True),
        _flag("cache", "-c --cache", on="rpc-server",
              help="Keep large weights in a folder, so that they are sent once."),
    ],
    "Server": [
        _flag("host", "-H --host ADDRESS", str, "IPv4 address to listen on.", default="127.0.0.1", on="rpc-server"),
        _serve("host", "--host HOST,...", parsers.names, "Addresses or *.sock to listen on.", default="127.0.0.1"),
        _flag("port", "-p --port N", integer(1, 65535), "Port to listen on.", default=50052, on="rpc-server"),
        _serve("port", "--port N", integer(0, 65535), "Port to listen on; 0: any free one.", default=8080),
        _serve("aliases", "-a --alias NAME,...", parsers.names, "Names of the model.  [default: file name]"),
        _serve("tags", "--tags TAG,...", parsers.names, "Tags of the model, shown by /v1/models."),
        _serve("has_page", "--ui/--no-ui", help="Serve the chat page at /.", default=ServerSettings.has_page),
        _serve("has_metrics", "--metrics", help="Answer /metrics."),
        _serve("api_keys", "--api-key KEY,...", parsers.names, "Keys; each request needs one of them."),
        _serve("api_key_file", "--api-key-file FILE", Path, "Keys from FILE, one per line."),
        _serve("ssl_key_file", "--ssl-key-file FILE", Path, "Key of a certificate, for HTTPS."),
        _serve("ssl_cert_file", "--ssl-cert-file FILE", Path, "Certificate, for HTTPS."),
        _serve("api_prefix", "--api-prefix PATH", str, "What all paths begin with, such as /llm.", default=""),
        _serve("ping_s", "--sse-ping-interval S", integer(-1), default=int(ServerSettings.ping_s),
               help="Seconds of silence after which a stream gets a comment; -1: none."),
        _serve("timeout_s", "-to --timeout S", default=ServerSettings.timeout_s, kind=float, min=1,
               help="Seconds within which a request's body must arrive."),
        _serve("n_queue_max", "--queue-max N", integer(0),
               "Requests that may wait for a slot; more are refused with 429.", default=ServerSettings.n_queue_max),
        _serve("deadline_s", "--deadline S", default=ServerSettings.deadline_s, kind=float, min=0,
               help="Seconds within which an answer has to be complete; it is cut then. 0: no limit."),
    ],
    "Origins": [
        _serve("cors_origins", "--cors-origins ORIGIN|localhost|*", str,
               "Origins whose pages may use the server.", default=ServerSettings.cors_origins),
        _serve("cors_methods", "--cors-methods METHODS", str,
               "Methods that these pages may use.", default=ServerSettings.cors_methods),
        _serve("cors_headers", "--cors-headers HEADERS", str,
               "Headers that they may send.", default=ServerSettings.cors_headers),
        _serve("cors_credentials", "--cors-credentials/--no-cors-credentials", default=ServerSettings.cors_credentials,
               help="Whether they may send cookies and keys."),
    ],
    "Files": [
        _flag("output", "-o --output FILE", Path, "File to write.", default=REQUIRED, on="attach quantize"),
        _flag("output", "-o --output FILE", Path,
              "File to write.  [default: mtp-MODEL next to the model]", on="extract train"),
        _flag("bare", "--bare", on="extract",
              help="Leave out the copies of the model's embedding and output: smaller, but for pymtp only."),
        _flag("force", "--force", help="Replace FILE if there is one.", on=_HEADS),
    ],
    "Types": [
        _flag("type", "--type TYPE", OneOf(WRITABLE_TYPES),
              f"Type of the heads' matrices, one of {', '.join(WRITABLE_TYPES)}.", on="quantize"),
        _train("type", "--type TYPE", OneOf(WRITABLE_TYPES), "Type of the head's matrices.", default="q8_0"),
        _flag("output_type", "--output-tensor-type TYPE", OneOf(WRITABLE_TYPES),
              "Type of the heads' own output matrices.  [default: that of --type]", on="quantize"),
        _flag("experts_type", "--experts-type TYPE", OneOf(WRITABLE_TYPES),
              "Type of routed experts.  [default: that of --type]", on="quantize"),
        _flag("tensor_type", "--tensor-type PATTERN=TYPE", parsers.pair("=", "PATTERN=TYPE"),
              "Type of tensors whose names match PATTERN; may be repeated; the first match wins.",
              on="quantize", many=True),
    ],
    "Slots": [
        _serve("n_slots", "-np --parallel N", integer(1, 256, "-1"),
               "Slots: requests that run at the same time.  [default: 4]"),
        _serve("kv_unified", "-kvu/-no-kvu --kv-unified/--no-kv-unified", kind=bool | None,
               help="All slots share a cache of -c tokens, or each has an equal part.  [default: shared, unless -np "
               "is given]"),
        _serve("has_context_shift", "--context-shift/--no-context-shift",
               help="When the context is full, drop its oldest part instead of ending the text."),
        _serve("n_keep", "--keep N", integer(-1), default=0,
               help="First tokens that --context-shift keeps; -1: all of the prompt."),
        _serve("has_slots", "--slots/--no-slots", help="Answer /slots.", default=ServerSettings.has_slots),
    ],
    "Kept prompts": [
        _serve("cache_prompt", "--cache-prompt/--no-cache-prompt", default=True,
               help="Reuse the part of a prompt that a slot holds."),
        _serve("shares_cache", "--cache-shared",
               help="Reuse prompts across API keys, too. Response times then reveal what others have sent."),
        _serve("cache_mib", "-cram --cache-ram MIB", integer(-1),
               "Host memory for prompts that slots no longer hold, at most half of what is free; 0: none.",
               default=ServerSettings.cache_bytes >> 20),
        _serve("cache_dir", "--cache-dir FOLDER", Path,
               "Folder that keeps prompts of idle slots over restarts, readable by this user alone.  [default: none]"),
        _serve("cache_disk_mib", "--cache-disk MIB", integer(1),
               "Room for prompts in --cache-dir.", default=ServerSettings.cache_disk_bytes >> 20),
        _serve("slot_save_path", "--slot-save-path FOLDER", Path,
               "Folder for saved slots.  [default: slots cannot be saved]"),
    ],
    "Training": [
        _train("data", "--data FILE", Path, many=True,
               help="Text to learn from, a folder of texts, or prompts for the model to answer: *.jsonl with "
               "{\"prompt\": ...} or {\"messages\": [...]} in each line; may be repeated.  [default: questions the "
               "model makes up]"),
        _train("init", "--init FILE", Path, "A trained head to begin with.  [default: the model's last layer]"),
        _train("minutes", "--minutes N", number(float), "Minutes in all.", default=30.0),
        _train("n_rows", "--rows N", integer(1000), "Tokens to learn from, kept on disk.", default=200_000),
        _train("n_steps", "--draft-max N", integer(1, 8), "Draft length to learn.", default=3),
        _train("n_threads", "-t --threads N", integer(1, _THREADS_MAX),
               "CPU threads.  [default: one per physical core]"),
        _train("device", "--device NAME", OneOf(("auto", "cpu", "cuda")), "Training device.", default="auto"),
        _train("seed", "-s --seed N", integer(0), "Seed.", default=0),
    ],
    "Chats": [
        _flag("chat_template", "--chat-template JINJA", parsers.text,
              "Chat template; chatml: the built-in ChatML one.  [default: the model's own]"),
        _flag("chat_template_file", "--chat-template-file FILE", Path, "Chat template from FILE."),
        _flag("chat_template_kwargs", "--chat-template-kwargs JSON", parsers.text,
              "More variables for the chat template, a JSON object."),
        _flag("reasoning", "-rea --reasoning", OneOf(_ON),
              "Thinking: off tells the chat template to leave it out; on and auto let it decide.", default="auto"),
        _serve("reasoning_format", "--reasoning-format", OneOf(("auto", "deepseek", "deepseek-legacy", "none")),
               "Where the thinking goes; none: into the content.", default=ServerSettings.reasoning_format),
        _flag("reasoning_budget", "--reasoning-budget N", integer(-1),
              "End the thinking after N tokens; -1: no limit.", default=-1),
        _flag("thinking_tags", "--thinking-tags BEGIN END", kind=tuple[str, str],
              help="Tags around the model's thinking.  [default: the model's own]"),
    ],
    "Text": [
        _run("prompt_text", "-p --prompt TEXT", str, "The prompt; the same as the argument."),
        _run("prompt_file", "-f --file FILE", str, "Read the prompt from FILE; -: from stdin."),
        _flag("prompt_text", "-p --prompt TEXT", str, "The first message.", on="chat"),
        _flag("prompt_file", "-f --file FILE", str, "Read the first message from FILE.", on="chat"),
        _flag("system", "-sys --system-prompt TEXT", parsers.text, "System prompt.  [default: none]", on="run chat"),
        _run("raw", "--raw", help="Complete the prompt as is, without the chat template."),
        _flag("max_tokens", "-n --n-predict N", integer(-1),
              "Tokens to generate; -1: until the model stops or the context is full.", default=-1),
        _run("ignore_eos", "--ignore-eos", help="Never generate end-of-generation tokens."),
        _flag("stop", "-r --stop --reverse-prompt TEXT", parsers.text,
              "Stop before TEXT; may be given several times.", many=True),
        _flag("grammar", "--grammar GBNF", parsers.text, "Constrain the output to this grammar."),
        _flag("grammar_file", "--grammar-file FILE", Path, "Grammar from FILE."),
        _flag("json_schema", "-j --json-schema JSON", parsers.text, "Constrain the output to this JSON schema."),
        _flag("json_schema_file", "-jf --json-schema-file FILE", Path, "JSON schema from FILE."),
    ],
    "Tests": [
        _several("n_prompt", "-p --n-prompt N", integer(0), "Measure prompts of N tokens; 0: none.", default=512),
        _several("n_gen", "-n --n-gen N", integer(0), "Measure N generated tokens; 0: none.", default=128),
        _lists("prompt_gen", "-pg P,N", parsers.prompt_and_generation,
               "Measure prompt and generation together; may be repeated."),
        _several("n_depth", "-d --n-depth N", integer(0), "Tokens already in the cache.", default=0),
        _bench("n_repeat", "-r --repetitions N", integer(1, 10000), "Run each test N times.", default=5),
        _several("n_seq_max", "--parallel N", integer(1, 256), "Sequences generated together.", default=1),
        _bench("prompts", "--prompts FILE", Path,
               'One per line: {"category": "code", "prompt": "..."}, or "messages".  '
               "[default: four built-in ones]"),
        _bench("answers", "--answers FILE", Path,
               'Like --prompts, with an "answer" each: the model runs as usual, but these texts are emitted.'),
        _lists("synthetic", "--synthetic P,...", numbers(0, 1, "between 0 and 1"),
               "Use random prompts and accept each draft with probability P. The output is not valid."),
        _bench("no_warmup", "--no-warmup", help="Measure without a warm-up run."),
    ],
    "Drafting": [
        _flag("draft", "--spec-type --draft auto|mtp|lookup|none", parsers.drafts,
              "auto: MTP heads if usable; mtp: require them; lookup: earlier text.", default="auto"),
        _place("draft_model", "-md --model-draft --draft-model MODEL", str,
               help="GGUF file with the MTP heads or the assistant, if the model's own file has none.  [default: "
               "mtp-*.gguf next to the model]"),
        _flag("draft_max", "--spec-draft-n-max --draft-max K|auto", integer(0, 32, "auto"),
              "Draft tokens per round, at most 32; 0: no drafting; auto: adapts to what is fastest.", default="auto"),
        _several("draft_max", "--spec-draft-n-max --draft-max K|auto", integer(0, 32, "auto"), default="auto",
                 help="Draft tokens per round; auto: adapts to what is fastest. 0 (plain decoding) is always measured "
                 "too."),
        _flag("draft_lookup", "--draft-lookup", OneOf(("off", "self", "shared")),
              "Where K is auto: also draft repeated text.", default="self"),
        _flag("draft_min", "--spec-draft-n-min --draft-min N", number(int),
              "Drop shorter drafts.", default=0),
        _flag("draft_p_min", "--spec-draft-p-min --draft-p-min P", number(float),
              "End a draft where no token has a probability of P or more.", default=0.0),
        *_varied("draft_vocab", "--draft-vocab N|auto|all", integer(1, INT_MAX, "auto", "all"),
                 "Draft from the first N tokens; auto: where that pays, recent ones too.", default="auto"),
        _flag("draft_hints", "--draft-hints/--no-draft-hints", kind=bool | None,
              help="Where K is auto: learn from, and for, other processes.  [default: on]"),
    ],
    "Acceptance": [
        _flag("draft_pick", "--spec-draft-sampling --draft-pick", default="auto",
              parse=OneOf(("greedy", "sample", "auto"), {"probabilistic": "sample"}),
              help="Draft the most likely tokens (greedy) or draw them (sample); auto: draw unless seeded."),
        *_varied("accept", "--accept", OneOf(ACCEPT),
                 "Acceptance method; none of them changes the distribution of the output.", default="auto"),
        _flag("rates", "--spec-synth-rates P,P,...", numbers(0, 1, "between 0 and 1"), on="run serve",
              help="For benchmarks: accept drafts at random, at these rates by position. The output is not valid."),
        _flag("length", "--spec-synth-len L", kind=float | None, on="run serve",
              help="Same, at rates that give a mean acceptance length of L."),
    ],
    "Sampling": [
        _number("temperature", "--temp --temperature T", "Temperature; 0: greedy."),
        _lists("temperature", "--temp --temperature T,...", numbers(0, 100, "0 or more"),
               "Temperature; 0: greedy.", default=("0",)),
        _count("top_k", "--top-k N", "Keep the N most likely tokens; 0: all."),
        _number("top_p", "--top-p P", "Keep the top tokens whose probabilities sum to P; 1: all."),
        _number("min_p", "--min-p P", "Drop tokens less likely than P times the top one; 0: none."),
        _flag("seed", "-s --seed N", integer(-1, 2**32 - 1), "Seed; -1: random.  [default: random]"),
        _flag("samplers", "--samplers NAMES", str,
              f"The sampler chain, separated by ';', from {', '.join(SAMPLERS)}.  [default: as llama.cpp]"),
        _flag("sampler_seq", "--sampler-seq --sampling-seq LETTERS", str,
              f"The sampler chain as letters: {', '.join(f'{one} {name}' for name, one in SAMPLERS.items())}."),
        _flag("logit_bias", "-l --logit-bias TOKEN(+/-)BIAS", parsers.bias,
              "Add BIAS to the logit of a token id; may be given several times.", many=True),
    ],
    "More samplers": [
        _number("typical_p", "--typical --typical-p P", "Locally typical sampling; 1: off."),
        _number("top_n_sigma", "--top-nsigma --top-n-sigma N",
                "Keep logits within N standard deviations of the highest; -1: off."),
        _number("xtc_probability", "--xtc-probability P", "Probability that XTC is applied; 0: off."),
        _number("xtc_threshold", "--xtc-threshold P",
                "XTC drops all tokens more likely than P except the least likely of them."),
        _number("dynatemp_range", "--dynatemp-range N",
                "Vary the temperature by up to N, depending on the entropy; 0: off."),
        _number("dynatemp_exponent", "--dynatemp-exp N", "Exponent of the entropy in dynamic temperature."),
        _count("mirostat", "--mirostat N", "1 or 2: mirostat instead of the chain, without drafts; 0: off."),
        _number("mirostat_eta", "--mirostat-lr N", "Mirostat's learning rate, eta."),
        _number("mirostat_tau", "--mirostat-ent N", "Mirostat's target entropy, tau."),
        _number("adaptive_target", "--adaptive-target P",
                "Probability that adaptive_p prefers; below 0: off. No drafts."),
        _number("adaptive_decay", "--adaptive-decay N", "How slowly adaptive_p adapts."),
    ],
    "Repetition": [
        _count("repeat_last_n", "--repeat-last-n N",
               "Last tokens that penalties look at; 0: off, -1: all (max 131,072)."),
        _number("repeat_penalty", "--repeat-penalty N", "Penalty for repeated tokens; 1: off."),
        _number("presence_penalty", "--presence-penalty N", "Subtracted from the logits of repeated tokens; 0: off."),
        _number("frequency_penalty", "--frequency-penalty N", "Subtracted once per occurrence; 0: off."),
        _number("dry_multiplier", "--dry-multiplier N", "DRY: penalty for continuing a repetition; 0: off."),
        _number("dry_base", "--dry-base N", "DRY: growth of the penalty per token."),
        _count("dry_allowed_length", "--dry-allowed-length N", "DRY: no penalty for repetitions of up to N tokens."),
        _count("dry_penalty_last_n", "--dry-penalty-last-n N",
               "DRY: last tokens that it looks at; 0: off, -1: all (max 131,072)."),
        _flag("dry_sequence_breakers", "--dry-sequence-breaker TEXT", parsers.text,
              "DRY: repetitions end at TEXT; may be given several times; none: no breakers.", many=True),
    ],
    "Context": [
        _serve("n_ctx", "-c --ctx-size N", integer(0),
               "Context size in tokens, of all slots together.  [default: as the model was trained, or what fits the "
               "memory; 0: that in any case]"),
        _flag("n_ctx", "-c --ctx-size N", integer(0), on="run chat inspect",
              help="Context size in tokens; 0: as the model was trained.  [default: as trained, at most 4096]"),
        *_varied("n_batch", "-b --batch-size N", integer(1), "Prompt tokens per batch.", default=2048),
        *_varied("n_ubatch", "-ub --ubatch-size N", integer(1),
                 "Tokens per pass.", default=512, on=f"{_GENERATING} inspect"),
        *_varied("flash_attn", "-fa --flash-attn", OneOf(_ON, _ON_WORDS),
                 "Flash attention; 1 and 0 mean on and off.", default="auto"),
        _place("invariant", "--invariant", help="On GPUs (CUDA), too, no text depends on others or on drafts. Slower."),
        *_varied("type_k", "-ctk --cache-type-k", OneOf(CACHE_TYPES),
                 "Type of the K cache.", default="f16", on=f"{_GENERATING} inspect"),
        *_varied("type_v", "-ctv --cache-type-v", OneOf(CACHE_TYPES),
                 "Type of the V cache.", default="f16", on=f"{_GENERATING} inspect"),
        _place("offload_kqv", "-kvo/-nkvo --kv-offload/--no-kv-offload", default=True,
               help="Keep the K/V cache of layers on a GPU there, or on the CPU."),
        _load("mtp_context", "--mtp-context", OneOf(("auto", "chained", "target")), default="auto",
              help="With several heads: each reads the head before it (chained, as trained), or all read the trunk "
              "(target); auto: chained."),
        _flag("n_seq_max", "-np --parallel N", integer(1, 256),
              "Texts at a time, for planning devices' memory.", default=1, on="inspect"),
    ],
    "Positions": [
        _load("rope_scaling", "--rope-scaling", OneOf(("none", "linear", "yarn")),
              "How positions are scaled. These flags hold for the heads too.  [default: as the model says]"),
        _load("rope_scale", "--rope-scale N", number(float),
              "A context N times as long; the same as --rope-freq-scale 1/N."),
        _load("rope_freq_base", "--rope-freq-base N", number(float),
              "Base frequency, except for layers with a window; 0 (default): as the model says."),
        _load("rope_freq_scale", "--rope-freq-scale N", number(float),
              "Factor of the frequencies; 0: as the model says."),
        _load("yarn_orig_ctx", "--yarn-orig-ctx N", integer(0), "YaRN: the trained length; 0: as the model says."),
        _load("yarn_ext_factor", "--yarn-ext-factor N", number(float),
              "YaRN: how much is extrapolated; 0: nothing; -1: as the model says."),
        _load("yarn_attn_factor", "--yarn-attn-factor N", number(float), "YaRN: factor of attention; -1: as above."),
        _load("yarn_beta_slow", "--yarn-beta-slow N", number(float), "YaRN: high correction dimension; -1: as above."),
        _load("yarn_beta_fast", "--yarn-beta-fast N", number(float), "YaRN: low correction dimension; -1: as above."),
    ],
    "Output": [
        _run("quiet", "-q --quiet", help="Print nothing but the text: no statistics, no thinking."),
        _serve("quiet", "-q --quiet", help="Log warnings and errors only."),
        _serve("log_file", "--log-file FILE", Path, "Append the log to FILE, too."),
        _serve("log_jsonl", "--log-jsonl/--no-log-jsonl", help="Log one JSON object per line."),
        _flag("as_json", "--json", help="Print one JSON object instead of text.", on="run inspect"),
        _flag("color", "-co --color", help="On a terminal, show accepted drafts in another colour.", on="run chat"),
        _run("logprobs", "--logprobs N", integer(0),
             "With --json: log probabilities of each token and of the N most likely ones."),
        _flag("resume", "--resume", help="Continue the latest terminal chat.", on="chat"),
        _flag("no_history", "--no-history", on="chat",
              help="Save neither what you type nor the chat: --resume cannot continue it."),
        _bench("form", "-o --output md|csv|json|jsonl|none", OneOf(FORMATS),
               "Output format on stdout.", default="md"),
        _bench("error_form", "-oe --output-err FORMAT", OneOf(FORMATS),
               "Also print the results on stderr, in this format.", default="none"),
        _bench("progress", "--progress/--no-progress", kind=bool | None,
               help="Show on stderr what is being measured, and each test when it is done.  [default: at a terminal]"),
        _load("verbose", "-v --verbose", help="Show llama.cpp's log on stderr."),
        _flag("debug", "--debug", help="Show tracebacks of errors.", on=f"{_PLACING} rpc-server doctor {_HEADS}"),
    ],
}
# fmt: on


def flags_of(command: str) -> list[Flag]:
    """The flags of a command, in the order in which they are shown."""
    return [flag for flags in TABLE.values() for flag in flags if command in flag.commands]
