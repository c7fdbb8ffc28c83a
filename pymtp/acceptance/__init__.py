"""Methods that accept or reject drafts.

Knows token ids and probabilities. Must not know the drafter, or text.
"""
