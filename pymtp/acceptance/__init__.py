"""Which drafts the target keeps.

Knows token ids and probabilities. Must not know who drafted, or text.
"""
