"""Start and watch processes: children, heartbeats, a supervisor of several children.

one child       children.py: JSON lines in both directions, and heartbeats (heartbeat.py)
retries         backoff.py: when to restart a process or repeat a request
several         supervisor.py: Ready | Message | Silent | Lost, local or on Dask workers
"""
