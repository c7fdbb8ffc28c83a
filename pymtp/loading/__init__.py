"""From a file and its parameters to loaded weights and a vocabulary.

Must not know sessions, sampling or drafting.
"""
