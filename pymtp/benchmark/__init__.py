"""Measures what drafting brings, and what it costs."""
