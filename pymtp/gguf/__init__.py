"""What the headers of GGUF files say about a model: its layers, heads, memory and vocabulary.

Reads headers only, never a weight but for sampled bytes. Must not know the native library or a session.
"""
