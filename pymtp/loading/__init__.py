"""Loads a model file: its weights and its vocabulary.

Must not know sessions, sampling or drafting.
"""
