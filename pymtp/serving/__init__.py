"""Requests, the slots in which they run, the rounds that serve them, and the thread that runs the rounds.

Must not know command lines or files.
"""
