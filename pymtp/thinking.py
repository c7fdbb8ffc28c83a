"""How models mark the thinking that precedes an answer.

Owns the list of markers. Knows text only: whether a marker is one token depends on the vocabulary.
"""

from __future__ import annotations

MARKERS: tuple[tuple[str, str], ...] = (
    ("<think>", "</think>"),  # DeepSeek, GLM, Hunyuan, MiMo, Nemotron, Qwen, Step
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Cohere
    ("[THINK]", "[/THINK]"),  # Mistral
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
)
"""Pairs of text that open and close it."""
