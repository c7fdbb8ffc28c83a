"""Turns the bytes of tokens into text: split characters, stop strings, thinking.

Knows bytes and text. Must not know token ids or logits.
"""
