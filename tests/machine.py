"""What the machine that runs the tests computes on."""

from __future__ import annotations

import llama_cpp  # takes llama.cpp's log, so before pymtp, which takes it over
import pytest

from pymtp.placement.devices import devices

GPUS = [device.name for device in devices() if device.kind in ("GPU", "IGPU")]
HAS_GPU = bool(GPUS)
HAS_EXACT_CPU = b" AVX2 = 1" in llama_cpp.llama_print_system_info()
"""Whether a text is bit for bit the same on the CPU, however it is cut into passes: see docs/limits.md."""
HAS_EXACT_TEXTS = HAS_EXACT_CPU and not HAS_GPU

_SAYS_WHY = "texts are bit-equal on CPUs with AVX2 only"
needs_exact_cpu = pytest.mark.skipif(not HAS_EXACT_CPU, reason=_SAYS_WHY)
needs_exact_texts = pytest.mark.skipif(not HAS_EXACT_TEXTS, reason=_SAYS_WHY)
IS_INVARIANT = HAS_EXACT_CPU if not HAS_GPU else all(name.startswith("CUDA") for name in GPUS)
needs_invariance = pytest.mark.skipif(not IS_INVARIANT, reason="texts are bit-equal on CPUs with AVX2 and by CUDA only")
needs_no_gpu = pytest.mark.skipif(HAS_GPU, reason="there is a GPU here")
