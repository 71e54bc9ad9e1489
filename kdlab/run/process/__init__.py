"""A run from inside: its process, its end, and the processes that watch it."""
