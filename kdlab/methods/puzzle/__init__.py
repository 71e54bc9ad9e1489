"""A student for a budget, of stand-ins that were distilled blockwise (Puzzle, arXiv:2411.19146)."""
