"""The papers' algorithms as pure machines: events in, instructions out.

No clock, wire, thread, chance or tensor: time is a field of an event. So the same
machine runs in the real reader, in a simulator and in a test without processes.
"""
