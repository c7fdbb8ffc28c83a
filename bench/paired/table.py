"""What is measured, as rows."""

from __future__ import annotations

from typing import Any

Table = list[dict[str, Any]]
"""Rows, by column."""
