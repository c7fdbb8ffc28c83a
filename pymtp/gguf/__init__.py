"""What the headers of GGUF files say about a model: its layers, heads, memory and vocabulary.

Reads headers, and of weights only samples and single rows. Must not know the native library or a session.
"""
