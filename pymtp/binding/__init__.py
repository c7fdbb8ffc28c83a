"""The native library: finding and loading it, its status codes, its log, and the array types at the boundary.

Must not know models, sessions or anything above them.
"""
