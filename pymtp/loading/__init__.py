"""What a model is loaded with: parameters, vocabulary, adapters, projector. loader.py loads its weights.

Must not know sessions, sampling or drafting.
"""
