"""Heads against code that pymtp's authors did not write: transformers' layers, and llama.cpp's converter.

A tiny random checkpoint in the published form goes two ways: PyTorch computes it (`heads`), and the converter of the
pinned llama.cpp makes a GGUF of it (`convert`) that the engine runs. Needs PyTorch and transformers, which nothing else
does: the optional dependencies `reference`.
"""
