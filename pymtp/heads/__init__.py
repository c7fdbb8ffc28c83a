"""MTP heads as files: taken out of a model, put into one, quantised.

Everything streams: of weights a few megabytes at a time are in memory, whatever the size of the files. A file
gets its name when it is complete. Knows no session and loads no model.

from pymtp.heads import HeadTypes, extract_heads, quantize_heads

heads = extract_heads("model.gguf")  # mtp-model.gguf
quantize_heads(heads, "mtp-small.gguf", HeadTypes(type="q4_k", output_type="q6_k"))
"""

from pymtp.heads.files import attach_heads, extract_heads
from pymtp.heads.quantize import Change, HeadTypes, quantize_heads

__all__ = ["Change", "HeadTypes", "attach_heads", "extract_heads", "quantize_heads"]
