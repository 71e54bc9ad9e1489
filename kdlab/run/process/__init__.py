"""A run from inside: its process, how it ends, what follows it."""
