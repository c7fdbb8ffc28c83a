"""Models with random weights: as fast or slow as real ones, but with meaningless output."""
