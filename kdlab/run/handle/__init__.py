"""A run from outside: start, watch, steer, attach, resume."""
