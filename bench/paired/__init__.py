"""What the benchmarks share: schemes that run in turn on one model, and how their times are told."""
