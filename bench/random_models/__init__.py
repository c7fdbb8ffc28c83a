"""Models with random weights: fast or slow like real ones, and without meaning."""
