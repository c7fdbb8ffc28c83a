"""Lays out help texts: options in groups that fit a screen each, examples at the end.

Owns the groups and their order; docs/cli.md is generated from them. Knows names of parameters, not what they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

SHORT = "pymtp.short_help"
"""Key in the context's `meta`: whether the short help is asked for."""

GROUPS: dict[str, tuple[str, ...]] = {
    "Model": ("model_file", "hf_repo", "offline", "n_gpu_layers", "n_threads"),
    "Adapters": ("lora", "lora_scaled", "lora_init_without_apply"),
    "Images": ("mmproj", "image", "image_min_tokens", "image_max_tokens"),
    "Devices": (
        *("device", "split_mode", "tensor_split", "main_gpu", "fit", "fit_target", "fit_ctx", "load_mode"),
        "list_devices",
    ),
    "Tensors": ("override_tensor", "cpu_moe", "n_cpu_moe"),
    "Processors": (*("cpu_mask", "cpu_range", "cpu_strict", "prio", "poll", "numa"),),
    "Processors for prompts": (
        *("n_threads_batch", "cpu_mask_batch", "cpu_range_batch", "cpu_strict_batch", "prio_batch", "poll_batch"),
    ),
    "Other machines": ("rpc", "cache"),
    "Server": (
        *("host", "port", "alias", "tags", "page", "metrics", "api_key", "api_key_file", "ssl_key_file"),
        *("ssl_cert_file", "cors_origins", "timeout", "deadline"),
    ),
    "Files": ("output", "bare", "force"),
    "Types": ("type", "output_type", "experts_type", "tensor_type"),
    "Slots": (
        *("n_slots", "kv_unified", "context_shift", "cache_prompt", "cache_shared", "cache_ram", "queue_max", "slots"),
        "slot_save_path",
    ),
    "Chats": (
        *("chat_template", "chat_template_file", "chat_template_kwargs", "jinja", "reasoning", "reasoning_format"),
        "reasoning_budget",
    ),
    "Text": (
        *("prompt_text", "prompt_file", "system", "raw", "max_tokens", "ignore_eos", "stop"),
        *("grammar", "grammar_file", "json_schema", "json_schema_file"),
    ),
    "Tests": (
        *("n_prompt", "n_gen", "prompt_gen", "n_depth", "n_repeat", "n_parallel", "prompts", "answers"),
        *("synthetic", "no_warmup"),
    ),
    "Drafting": (
        *("draft", "draft_model", "draft_max", "draft_lookup", "draft_min", "draft_p_min", "draft_vocab"),
        "draft_head_type",
    ),
    "Acceptance": (
        *("draft_pick", "accept", "relaxed_top_n", "relaxed_delta", "thinking_tags"),
        *("spec_synth_rates", "spec_synth_len"),
    ),
    "Sampling": ("temperature", "top_k", "top_p", "min_p", "seed", "samplers", "sampler_seq", "logit_bias"),
    "More samplers": (
        *("typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent"),
        *("mirostat", "mirostat_eta", "mirostat_tau", "adaptive_target", "adaptive_decay"),
    ),
    "Repetition": (
        *("repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base"),
        *("dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    ),
    "Context": ("n_ctx", "n_batch", "n_ubatch", "flash_attn", "type_k", "type_v", "mtp_context"),
    "Output": (
        *("quiet", "as_json", "color", "logprobs", "resume", "no_history", "form", "error_form", "wide", "plot"),
        *("compare", "progress"),
        *("verbose", "debug", "version", "install_completion", "show_completion", "help"),
    ),
}
"""Titles, and the parameters of each, in the order in which they are shown."""

_BASIC_MODEL = {"model_file", "hf_repo", "n_gpu_layers", "n_threads", "n_ctx", "temperature", "seed"}
_BASIC_TEXT = {"prompt_text", "prompt_file", "system", "max_tokens", "quiet", "as_json", "color"}
_BASIC_DRAFTS = {"draft", "draft_model", "draft_max"}
_BASIC_BENCH = {"n_prompt", "n_gen", "n_repeat", "prompts", "form", "plot", "compare", "resume"}
_BASIC_SERVE = {"host", "port", "n_slots", "alias", "api_key"}
_BASIC_HEADS = {"output", "type"}
BASIC = _BASIC_MODEL | _BASIC_TEXT | _BASIC_DRAFTS | _BASIC_BENCH | _BASIC_SERVE | _BASIC_HEADS | {"help"}
"""What -h shows; --help shows everything."""


def groups(command: Any, ctx: Any) -> Iterator[tuple[str, list[Any]]]:
    """The options of a command by group, without empty groups; options that no group names come last."""
    options = {param.name: param for param in command.get_params(ctx) if param.param_type_name == "option"}
    for title, names in GROUPS.items():
        if found := [options.pop(name) for name in names if name in options]:
            yield title, found
    if options:
        yield "Other", list(options.values())


def rows(options: Sequence[Any], ctx: Any) -> list[tuple[str, str]]:
    """Flags and help text of each option that is not hidden."""
    records = [option.get_help_record(ctx) for option in options]
    return [(str(flags), str(text)) for flags, text in filter(None, records)]


def write_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the groups into a help text; for -h only what most people need."""
    for title, options in groups(command, ctx):
        shown = [option for option in options if option.name in BASIC] if ctx.meta.get(SHORT) else options
        if shown:
            with formatter.section(title):
                formatter.write_dl(rows(shown, ctx))


def write_examples(examples: str | None, formatter: Any) -> None:
    """Write the examples unchanged, one per line."""
    if examples:
        with formatter.section("Examples"):
            for line in examples.strip().splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line.strip()}\n")
