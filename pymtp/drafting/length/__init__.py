"""How many tokens a round drafts: costs of rounds, what drafts were worth, and the decision.

Knows probabilities and costs. Must not know text or the scheduler.
"""
