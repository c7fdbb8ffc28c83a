"""The types of arrays at the boundary to the native library.

Imports NumPy, which takes longer than loading a small model: modules that every generation needs import it, and this
one, only for type checkers and in functions that make arrays.
"""

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]
Probs = npt.NDArray[np.float64]
