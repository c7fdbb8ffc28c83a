"""The native library: where it lies, its status codes, its log, and the array types that cross over.

Must not know models, sessions or anything above them.
"""
