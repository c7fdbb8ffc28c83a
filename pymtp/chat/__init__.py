"""Chats: messages to prompts with a model's template, and answers to reasoning, content and tool calls.

llama.cpp's own code does both (native/include/pymtp-text.h). Must not know logits, sampling or sequences.
"""
