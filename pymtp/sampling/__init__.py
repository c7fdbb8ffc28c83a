"""From a row of logits to a distribution to a token: parameters, the chain, grammars, log probabilities.

Gets rows of logits. Must not know passes, drafting or text.
"""
