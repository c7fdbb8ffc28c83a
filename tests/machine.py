"""What the machine that runs the tests computes on."""

from __future__ import annotations

import platform

import pytest

from pymtp.placement.devices import devices

HAS_GPU = any(device.kind in ("GPU", "IGPU") for device in devices())
HAS_EXACT_TEXTS = not HAS_GPU and platform.machine() in ("x86_64", "AMD64")
"""Whether a text is bit for bit the same however it is cut into passes."""

needs_exact_texts = pytest.mark.skipif(not HAS_EXACT_TEXTS, reason="texts are bit-equal on x86 CPUs only")
needs_no_gpu = pytest.mark.skipif(HAS_GPU, reason="there is a GPU here")
