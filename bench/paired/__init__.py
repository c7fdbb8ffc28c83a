"""Runs schemes in turn on one model, and reports their times."""
