"""The experiment: its spec, the interface of methods, and what a run sets up for them."""
