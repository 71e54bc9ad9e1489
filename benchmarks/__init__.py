"""Side-by-side measurements: ratios of medians, interleaved in one run."""
