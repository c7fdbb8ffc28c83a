"""What the machine that runs the tests computes on."""

from __future__ import annotations

import platform

from pymtp.loading.devices import devices

HAS_GPU = any(device.kind in ("GPU", "IGPU") for device in devices())
HAS_EXACT_TEXTS = not HAS_GPU and platform.machine() in ("x86_64", "AMD64")
"""Whether a text is bit for bit the same however it is cut into passes."""
