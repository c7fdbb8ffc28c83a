"""Passes over rows of one context: the trunk, the MTP heads, and what they leave.

Knows token ids, positions and logits. Must not know text, sampling or drafting policy.
"""
