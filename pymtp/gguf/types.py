"""The types of tensors and of whole files, by the numbers that GGUF files hold.

The gguf package has the same tables, and takes longer to import than a header to read; a test compares them.
"""

from typing import NamedTuple


class TensorType(NamedTuple):
    """How the elements of a tensor are stored: in blocks."""

    name: str
    block_elements: int
    block_bytes: int


_BY_BLOCK = {
    1: "0 F32 4, 1 F16 2, 24 I8 1, 25 I16 2, 26 I32 4, 27 I64 8, 28 F64 8, 30 BF16 2",
    32: "2 Q4_0 18, 3 Q4_1 20, 6 Q5_0 22, 7 Q5_1 24, 8 Q8_0 34, 9 Q8_1 40, 20 IQ4_NL 18, 39 MXFP4 17",
    256: "10 Q2_K 84, 11 Q3_K 110, 12 Q4_K 144, 13 Q5_K 176, 14 Q6_K 210, 15 Q8_K 292, 16 IQ2_XXS 66, "
    "17 IQ2_XS 74, 18 IQ3_XXS 98, 19 IQ1_S 50, 21 IQ3_S 110, 22 IQ2_S 82, 23 IQ4_XS 136, 29 IQ1_M 56, "
    "34 TQ1_0 54, 35 TQ2_0 66",
    64: "40 NVFP4 36",
    128: "41 Q1_0 18",
}
"""By the elements of a block: number, name and bytes of each type."""

TENSOR_TYPES = {
    int(number): TensorType(name, n, int(n_bytes))
    for n, kinds in _BY_BLOCK.items()
    for number, name, n_bytes in map(str.split, kinds.split(","))
}

TYPE_IDS = {kind.name.lower(): number for number, kind in TENSOR_TYPES.items()}
"""The numbers of types by their names, as flags have them."""

WRITABLE_TYPES = (
    *("f32", "f16", "bf16", "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_nl", "iq4_xs"),
    *("q3_k", "q2_k", "mxfp4"),
)
"""Names of the types that weights can be converted to, as flags have them."""
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""Those that K and V can be kept in: what llama.cpp's own command line accepts."""

_FILE_TYPES = (
    "F32 F16 Q4_0 Q4_1 _ _ _ Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K "
    "IQ2_XXS IQ2_XS Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16 _ _ _ "
    "TQ1_0 TQ2_0 MXFP4_MOE NVFP4 Q1_0"
)
FILE_TYPES = {number: name for number, name in enumerate(_FILE_TYPES.split()) if name != "_"} | {1024: "GUESSED"}
"""Names of `general.file_type`: what most tensors of a file are stored as."""

SAMPLING_PREFIX = "general.sampling."
"""What keys of recommended sampling begin with."""
