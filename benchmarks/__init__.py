"""Evidence beside the package: benches (medians, interleaved in one run) and reproductions."""
