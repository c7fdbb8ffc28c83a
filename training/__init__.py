"""Makes the embedded model: corpus to shards, training, export to GGUF, parity with llama.cpp, evaluation.

Not part of the package: docs/training.md says how to run it.
"""
