"""Changing a run while it goes on: what is asked of it, what can be tuned, and who hears it."""
