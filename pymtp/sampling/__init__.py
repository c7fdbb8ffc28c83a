"""Turns a row of logits into a distribution and a token: parameters, the chain, grammars, log probabilities.

Must not know passes, drafting or text.
"""
