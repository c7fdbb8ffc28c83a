"""The fields of requests, under llama-server's and OpenAI's names.

Knows names and types. What they mean is in `parameters`; null stands for a field that is left out.
"""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, defstruct, field

from pymtp.sampling.params import SamplingParams
from pymtp.serving.params import GenerationParams

N_TEXTS_MAX = 256
"""The most stop strings, which are looked for after each token, and of the strings that end DRY's repetitions."""
Choices = Annotated[int, Meta(ge=1, le=128)]
OneAnswer = Literal[1] | None
"""Of APIs whose answers are not several."""
Texts = str | Annotated[list[str], Meta(max_length=N_TEXTS_MAX)]
Bias = float | bool
"""What is added to a logit; false: the token is banned."""


class StreamOptions(Struct):
    include_usage: bool | None = None


class LoraScale(Struct):
    """A LoRA adapter, and how much it counts."""

    id: int = -1
    scale: float = 0.0


_PARAMS = {each.name: each.type for each in (*fields(SamplingParams), *fields(GenerationParams))}
SAMPLING = [each.name for each in fields(SamplingParams) if each.type in (int, float, int | None)]
DRAFTING = ["draft_max", "draft_min", "draft_p_min", "draft_lookup", "draft_pick", "accept"]
SAME = [*SAMPLING, *DRAFTING, "ignore_eos", "cache_prompt"]
"""Fields that requests have as SamplingParams and GenerationParams have them."""
UNSUPPORTED = {
    "n_indent": "use stop strings",
    "suffix": "use /infill",
    "echo": "the prompt is not repeated",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "answers are texts",
    "web_search_options": "there is no search",
}
"""Fields that are known, and refused where they ask for anything, and why."""
if TYPE_CHECKING:  # its fields are known when it is made
    NamedElsewhere = Struct
else:
    _KINDS = {name: _PARAMS[name] | None for name in SAME} | dict.fromkeys(UNSUPPORTED, Any)
    NamedElsewhere = defstruct("NamedElsewhere", [(name, kind, None) for name, kind in _KINDS.items()])


class GenerationFields(NamedElsewhere, kw_only=True):
    """What every request for text can ask for."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    n: Choices | None = None
    n_cmpl: Choices | None = None
    n_predict: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    t_max_predict_ms: float | None = None
    deadline_ms: Annotated[float, Meta(gt=0)] | None = None
    stop: Texts | None = None
    n_keep: int | None = None
    id_slot: int | None = None

    dry_sequence_breakers: Annotated[list[str], Meta(min_length=1, max_length=N_TEXTS_MAX)] | None = None
    samplers: Texts | None = None
    logit_bias: list[tuple[int | str, Bias]] | dict[str, Bias] | None = None

    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    strict_schemas: bool | None = None

    n_probs: int | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None
    response_fields: list[str] | None = None
    sse_ping_interval: float | None = None
    verbose: bool | None = None

    accept: str | None = None
    speculative_n_max: int | None = field(default=None, name="speculative.n_max")
    speculative_n_min: int | None = field(default=None, name="speculative.n_min")
    speculative_p_min: float | None = field(default=None, name="speculative.p_min")

    lora: list[LoraScale] | None = None

    best_of: int | None = None


class CompletionBody(GenerationFields, kw_only=True):
    """A request of /completion and /v1/completions."""

    prompt: Any = None
    logprobs: int | None = None


class InfillChunk(Struct, kw_only=True):
    """A piece of another file."""

    text: str
    filename: str = "tmp"


class InfillBody(GenerationFields, kw_only=True):
    """A request of /infill."""

    input_prefix: str | list[int | str] | None = None
    input_suffix: str | list[int | str] | None = None
    input_extra: list[InfillChunk] | None = None
    prompt: str | None = None


class ChatBody(GenerationFields, kw_only=True):
    """A request of /v1/chat/completions, to which those of the other chat APIs are turned."""

    messages: list[dict[str, Any]]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    return_drafts: bool | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str | None = None
    reasoning_format: str | None = None
    reasoning_effort: str | None = None
    reasoning_budget_tokens: int | None = None
    thinking_budget_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    modalities: list[Any] | None = None


class TokenizeBody(Struct, kw_only=True):
    content: Any = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(Struct, kw_only=True):
    tokens: list[int] | None = None


class SlotBody(Struct, kw_only=True):
    """A request of /slots/{id}."""

    filename: str | None = None
