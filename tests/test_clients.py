"""Programs that know OpenAI's or Anthropic's API, as docs/clients.md sets them up, against a server of pymtp.

Each runs where it is installed: langchain-openai, litellm and lm_eval from PyPI; claude, codex and opencode from npm.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from http_server import Client, running
from llama_archive import texts
from pymtp import GenerationParams, Model
from pymtp.server.settings import ServerSettings

pytestmark = [pytest.mark.slow, pytest.mark.model]

TIMEOUT_S = 1800


@pytest.fixture(scope="module")
def server() -> Iterator[Client]:
    template = texts("models/templates", ".jinja")["Qwen-Qwen2.5-7B-Instruct.jinja"]
    settings = ServerSettings(GenerationParams(cache_prompt=True), aliases=("nano",))
    with running(lambda: Model(n_ctx=65536, n_seq_max=2, chat_template=template), settings) as client:
        yield client


def program(name: str) -> str:
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed")
    return found


def run(home: Path, *command: str, **environment: str) -> str:
    result = subprocess.run(
        command,
        cwd=home,
        env=os.environ | {"HOME": str(home), "NO_PROXY": "127.0.0.1"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip()


def answered(server: Client) -> int:
    return sum(server.app.state.served.counts.ended.values())


def test_claude_code(server: Client, tmp_path: Path) -> None:
    n_before = answered(server)
    text = run(
        tmp_path,
        *(program("claude"), "-p", "--system-prompt", "Be brief.", "--tools", "Read", "--", "Hello"),
        ANTHROPIC_BASE_URL=server.url,
        ANTHROPIC_API_KEY="none",
        ANTHROPIC_MODEL="nano",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        CLAUDE_CODE_MAX_OUTPUT_TOKENS="60",
    )
    assert text and answered(server) > n_before


def test_codex(server: Client, tmp_path: Path) -> None:
    folder = tmp_path / ".codex"
    folder.mkdir()
    provider = f'name = "pymtp"\nbase_url = "{server.url}/v1"\nwire_api = "responses"\n'
    head = 'model = "nano"\nmodel_provider = "pymtp"\n'
    (folder / "config.toml").write_text(f"{head}[model_providers.pymtp]\n{provider}", "utf-8")
    n_before = answered(server)
    run(tmp_path, program("codex"), "exec", "--skip-git-repo-check", "Hello")
    assert answered(server) > n_before


def test_opencode(server: Client, tmp_path: Path) -> None:
    options = {"baseURL": f"{server.url}/v1"}
    models = {"nano": {"limit": {"context": 65536, "output": 60}}}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}
    (tmp_path / "opencode.json").write_text(json.dumps({"provider": {"pymtp": provider}}), "utf-8")
    n_before = answered(server)
    run(tmp_path, program("opencode"), "run", "--model", "pymtp/nano", "Hello")
    assert answered(server) > n_before


def test_langchain(server: Client) -> None:
    langchain = pytest.importorskip("langchain_openai")
    pydantic = pytest.importorskip("pydantic")
    chat = langchain.ChatOpenAI(
        model="nano", base_url=f"{server.url}/v1", api_key="none", max_tokens=200, temperature=0
    )
    whole = chat.invoke("Hello").content
    assert "".join(chunk.content for chunk in chat.stream("Hello")) == whole != ""
    offer: Any = pydantic.create_model("Offer", stars=(int, pydantic.Field(ge=0, le=5)), sold=bool)
    assert chat.with_structured_output(offer).invoke("An offer").stars <= 5
    city = pydantic.create_model("weather", __doc__="The weather of a city.", city=str)
    calls = chat.bind_tools([city], tool_choice="weather").invoke("Hello").tool_calls
    assert [call["name"] for call in calls] == ["weather"]


def test_litellm(server: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "temperature": 0}
    texts = [
        litellm.completion(model=f"{api}/nano", api_base=server.url + path, api_key="none", **asked)
        .choices[0]
        .message.content
        for api, path in (("openai", "/v1"), ("anthropic", ""))
    ]
    assert texts[0] == texts[1] != ""


@pytest.mark.parametrize("api", ["completions", "chat-completions"])
def test_lm_evaluation_harness(server: Client, tmp_path: Path, api: str) -> None:
    """Of two questions one has the answer that the server gives."""
    question = "1 + 1 ="
    asked: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "seed": 1234, "stop": ["\n"]}
    if api == "completions":
        answer = server.post("/v1/completions", prompt=question, **asked).json["choices"][0]["text"]
    else:
        chat = [{"role": "user", "content": question}]
        answer = server.post("/v1/chat/completions", messages=chat, **asked).json["choices"][0]["message"]["content"]
    lines = [json.dumps({"q": question, "a": each.strip()}) for each in (answer, answer + "!")]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines), "utf-8")
    (tmp_path / "sums.yaml").write_text(
        f"""
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path}/sums.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{a}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 8}}
filter_list: [{{name: none, filter: [{{function: remove_whitespace}}, {{function: take_first}}]}}]
metric_list: [{{metric: exact_match}}]
""",
        "utf-8",
    )
    path = api.replace("-", "/")
    arguments = f"base_url={server.url}/v1/{path},model=nano,tokenizer_backend=None,tokenized_requests=False"
    more = ["--apply_chat_template"] if api != "completions" else []
    run(
        tmp_path,
        *(program("lm_eval"), "--model", f"local-{api}", "--model_args", arguments, *more),
        *("--tasks", "sums", "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")),
        HF_HUB_OFFLINE="1",
        HF_DATASETS_OFFLINE="1",
    )
    (found,) = (tmp_path / "out").rglob("results*.json")
    assert json.loads(found.read_text("utf-8"))["results"]["sums"]["exact_match,none"] == 0.5
