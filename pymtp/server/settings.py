"""How a server is set up.

Knows values; no model and no connection.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pymtp  # its names are imported on first use: a command's help shows the defaults below, and needs none of them


@dataclass(frozen=True)
class ServerSettings:
    """What a server is asked to be. Names are those of llama-server's flags."""

    params: "pymtp.GenerationParams" = field(default_factory=lambda: pymtp.GenerationParams())
    """What requests that say nothing else get."""
    aliases: tuple[str, ...] = ()
    """Names of the model; none: its file's."""
    tags: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    """One of them has to come with each request; none: anybody may ask."""
    has_slots: bool = True
    has_metrics: bool = False
    has_page: bool = True
    slot_save_path: Path | None = None
    """The folder of saved slots; None: slots cannot be saved."""
    n_queue_max: int = 1024
    """Requests that may wait for a slot; others are refused with 429."""
    image_rows_max: int = 1 << 16
    """Rows of images in the prompts that run or wait, each with some 15 KiB of pixels; others are refused with 429."""
    body_bytes_max: int = 64 << 20
    """The longest body of a request."""
    timeout_s: float = 600
    """How long a body may take to arrive."""
    deadline_s: float = 0
    """The longest from a request to the end of its answers, where it does not ask for less; 0: no limit."""
    ping_s: float = 30
    """A stream that has been silent for this long gets a comment, so that nobody gives it up."""
    is_verbose: bool = False
    """Whether answers show what they were made from."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the template, where a request does not set them."""
    reasoning: Literal["auto", "on", "off"] = "auto"
    """Thinking, where a request does not say."""
    reasoning_budget: int = -1
    """Most tokens of thinking, where a request does not say; -1: any number."""
    reasoning_format: Literal["auto", "deepseek", "deepseek-legacy", "none"] = "auto"
    """Where the thinking goes, where a request does not say: see ChatParams."""
    has_context_shift: bool = False
    """Whether a full context lets go of its oldest part; else the text ends."""
    n_keep: int = 0
    """Tokens of the prompt that it keeps then, where a request does not say; -1: all of it."""
    cache_bytes: int = 8 << 30
    """Host memory for what slots held before."""
    cache_dir: Path | None = None
    """A folder that keeps prompts over restarts; None: they go with the server."""
    cache_disk_bytes: int = 8 << 30
    """Room for them there."""
    shares_cache: bool = False
    """Whether requests with different keys reuse one another's prompts, which times of answers show."""
    api_prefix: str = ""
    """What stands before all paths, such as /llm."""
    cors_origins: str = "*"
    """Origins whose pages may ask: `*` for all, `localhost` for those of this machine, or a list with commas."""
    cors_credentials: bool = True
    cors_methods: str = "GET, POST, DELETE, OPTIONS"
    cors_headers: str = "*"
