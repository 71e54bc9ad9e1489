"""The machines of kdlab/papers on a simulated clock: hundreds of teachers on a laptop."""
