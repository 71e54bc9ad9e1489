"""Processes that are started and watched: children, heartbeats, a supervisor of several.

one of them       children.py: one JSON line each way, and heartbeats (heartbeat.py)
how often again   backoff.py: of whatever ended, or does not answer
several           supervisor.py: Ready | Said | Silent | Lost, here or on Dask workers
"""
