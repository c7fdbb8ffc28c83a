"""How many tokens a round drafts: what rounds cost, what drafts were worth, and the decision.

Knows probabilities and costs. Must not know text or the scheduler.
"""
