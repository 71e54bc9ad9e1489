"""Processes that are started and watched: children, heartbeats, a supervisor of several.

child pipes       children.py: one JSON line each way
ranks             rank_child.py, with heartbeats (heartbeat.py)
how often again   restarts.py
a small heap      allocator.py
all of a group    supervisor.py: Ready | Said | Silent | Lost, here or on Dask workers
"""
