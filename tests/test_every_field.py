"""Every field that requests can have changes the answer, or is refused by name; none is read by nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from http_server import Client, Response, running
from pymtp import GenerationParams, Model
from pymtp.server import fields
from pymtp.server.messages import MessagesBody
from pymtp.server.responses import ResponsesBody
from pymtp.server.settings import ServerSettings
from random_gguf import write_glm4moe

pytestmark = pytest.mark.model

SAID = [{"role": "user", "content": "Is 7 more than 5?"}]
SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
TOOL = {"name": "look", "input_schema": SCHEMA, "type": "function", "function": {"name": "look", "parameters": SCHEMA}}
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}"
    "</think>\n{% endif %}{{ m.content }}{% for call in m.tool_calls %}<tool_call>{{ call.function | tojson }}"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{{ word }}{{ reasoning_effort }}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is false %}</think>\n{% endif %}"
    "{% endif %}"
)

TEXT = {"seed": 1, "id_slot": 0, "n_keep": 1, "speculative.n_max": 0, "verbose": True, "max_tokens": 9}
ENDPOINTS: dict[str, tuple[tuple[type, ...], dict[str, Any]]] = {
    "/completion": ((fields.CompletionBody,), TEXT | {"prompt": "One, two,"}),
    "/v1/completions": ((fields.CompletionBody,), TEXT | {"prompt": "One, two,"}),
    "/infill": ((fields.InfillBody,), TEXT | {"input_prefix": "One, ", "input_suffix": "three"}),
    "/v1/chat/completions": ((fields.ChatBody,), TEXT | {"messages": SAID}),
    "/v1/messages": ((MessagesBody, fields.GenerationFields), TEXT | {"messages": SAID}),
    "/v1/responses": ((ResponsesBody, fields.GenerationFields), TEXT | {"input": "Is 7 more than 5?"}),
    "/tokenize": ((fields.TokenizeBody,), {"content": "<|im_start|>a"}),
    "/detokenize": ((fields.DetokenizeBody,), {"tokens": [5]}),
}
STREAMS = {"stream": True}
THINKS = {"tools": [TOOL], "tool_choice": "required"}
# a value that is not the default's, and what has to be asked with it
ODD: dict[str, Any] = {
    "stream": True,
    "stream_options": ({"include_usage": True}, STREAMS),
    "n": 2,
    "n_cmpl": 2,
    "n_predict": 2,
    "max_tokens": 2,
    "max_completion_tokens": 2,
    "max_output_tokens": 2,
    "stop": [" "],
    "stop_sequences": [" "],
    "ignore_eos": True,
    "n_keep": 2,
    "id_slot": 1,
    "seed": 2,
    "temperature": 0.1,
    "dynatemp_range": 0.1,
    "dynatemp_exponent": 2,
    "top_k": 1,
    "top_p": 0.1,
    "min_p": 0.5,
    "typical_p": 0.5,
    "top_n_sigma": 1,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "min_keep": 3,
    "repeat_last_n": 3,
    "repeat_penalty": 1.5,
    "presence_penalty": 1,
    "frequency_penalty": 1,
    "dry_multiplier": 1,
    "dry_base": 2,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 3,
    "dry_sequence_breakers": ["x"],
    "mirostat": 1,
    "mirostat_tau": 1,
    "mirostat_eta": 0.2,
    "adaptive_target": (0.5, {"samplers": ["adaptive_p"]}),
    "adaptive_decay": 0.5,
    "samplers": ["top_k"],
    "logit_bias": {"5": 1},
    "grammar": 'root ::= "a"',
    "json_schema": SCHEMA,
    "strict_schemas": (True, {"json_schema": {"type": "string", "pattern": "a"}}),
    "n_probs": 2,
    "post_sampling_probs": (True, {"n_probs": 2}),
    "return_tokens": True,
    "return_progress": (True, STREAMS),
    "timings_per_token": True,
    "return_drafts": (True, STREAMS),
    "response_fields": ["content"],
    "draft_max": 1,
    "draft_min": 1,
    "draft_p_min": 0.5,
    "draft_lookup": "self",
    "draft_pick": "greedy",
    "accept": "rejection",
    "speculative.n_max": 1,
    "speculative.n_min": 1,
    "speculative.p_min": 0.5,
    "lora": [{"id": 0, "scale": 1}],
    "n_indent": 1,
    "best_of": 2,
    "suffix": "x",
    "echo": True,
    "prompt": "Three\n",
    "input_prefix": "Three\n",
    "input_suffix": "Three\n",
    "input_extra": [{"text": "Three\n"}],
    "messages": [{"role": "user", "content": "Three"}],
    "input": "Three",
    "system": "Three",
    "instructions": "Three",
    "logprobs": True,
    "top_logprobs": (2, {"logprobs": True}),
    "response_format": {"type": "json_schema", "schema": SCHEMA},
    "output_format": {"type": "json_schema", "schema": SCHEMA},
    "output_config": {"effort": "high"},
    "text": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "tools": [TOOL],
    "tool_choice": "required",
    "add_generation_prompt": False,
    "continue_final_message": (True, {"messages": [*SAID, {"role": "assistant", "content": "a"}]}),
    "reasoning_format": ("none", {"grammar": 'root ::= "<think>a</think>b"'}),
    "reasoning_effort": "high",
    "reasoning": {"effort": "high"},
    "reasoning_budget_tokens": (1, THINKS),
    "thinking_budget_tokens": (1, THINKS),
    "thinking": (
        {"type": "enabled", "budget_tokens": 1},
        {"tools": [{"name": "look", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
    ),
    "chat_template_kwargs": {"word": "Three"},
    "functions": [TOOL],
    "function_call": "auto",
    "modalities": ["audio"],
    "audio": {"voice": "a"},
    "web_search_options": {},
    "container": "a",
    "mcp_servers": [{"name": "a"}],
    "previous_response_id": "a",
    "conversation": "a",
    "background": True,
    "include": ["message.output_text.logprobs"],
    "content": "Three",
    "add_special": True,
    "parse_special": False,
    "with_pieces": True,
    "tokens": [6],
}
NO_ANSWER = {
    "model": "one is loaded",
    "cache_prompt": "saves time: has tests of its own",
    "parallel_tool_calls": "there may be one call anyway: has tests of its own",
    "metadata": "for whoever asks",
    "store": "nothing is stored",
    "verbose": "adds what other fields are asked for here",
    **dict.fromkeys(("t_max_predict_ms", "deadline_ms", "sse_ping_interval"), "of time: have tests of their own"),
}
VARIES = ("id", "created", "created_at", "completed_at", "timings", "tokens_cached", "cached_tokens", "cache_n")


EACH_PATH = pytest.mark.parametrize(
    "path",
    [path if path in ("/infill", "/tokenize") else pytest.param(path, marks=pytest.mark.slow) for path in ENDPOINTS],
)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Client]]:
    """By path: the embedded model, and one that has tokens for gaps."""
    settings = ServerSettings(GenerationParams(), has_context_shift=True)
    options: dict[str, Any] = {"n_ctx": 512, "n_seq_max": 2, "n_threads": 1, "chat_template": TEMPLATE}
    gaps = {f"tokenizer.ggml.fim_{kind}_token_id": 300 + i for i, kind in enumerate(("pre", "suf", "mid"))}
    path = write_glm4moe(tmp_path_factory.mktemp("models") / "gaps.gguf", more=gaps)
    begins: dict[str, Any] = {"override_kv": [("tokenizer.ggml.add_bos_token", True)]}
    with (
        running(lambda: Model(**options, **begins), settings) as usual,
        running(lambda: Model(path, **options), settings) as gap,
    ):
        yield {path: gap if path == "/infill" else usual for path in ENDPOINTS}


def comparable(reply: Response) -> Any:
    """What an answer says, without what varies."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items() if key not in VARIES}
        return list(map(plain, value)) if isinstance(value, list) else value

    is_stream = reply.headers["content-type"].startswith("text/event-stream")
    return reply.status, plain(reply.events if is_stream else reply.json)


@EACH_PATH
def test_a_field_changes_the_answer_or_is_refused(servers: dict[str, Client], path: str) -> None:
    (bodies, common), server, unread = ENDPOINTS[path], servers[path], []
    names = {field.encode_name for body in bodies for field in msgspec.structs.fields(body)} - NO_ANSWER.keys()
    if path in ("/completion", "/infill", "/v1/messages"):
        names.remove("stream_options")  # usage is always there
    for name in sorted(names):
        value, more = ODD[name] if isinstance(ODD[name], tuple) else (ODD[name], {})
        without, with_it = (server.post(path, **common | more | field) for field in ({}, {name: value}))
        assert without.status == 200 or name == "strict_schemas", (name, without.data)
        assert with_it.status in (200, 400, 501), (name, with_it.data)
        if comparable(with_it) == comparable(without):
            unread.append(name)
    assert unread == []


@EACH_PATH
def test_values_that_nobody_expects_fail_no_request(servers: dict[str, Client], path: str) -> None:
    (bodies, common), server = ENDPOINTS[path], servers[path]
    for field in (field for body in bodies for field in msgspec.structs.fields(body)):
        for value in (2**40, -(2**70), 1e300, "", "x", [3], {"a": 3}, {"type": [3]}):
            reply = server.post(path, **common | {field.encode_name: value})
            assert reply.status < 500 or reply.status == 501, (field.encode_name, value, reply.data)
