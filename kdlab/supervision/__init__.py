"""Processes that are started and watched: children, heartbeats, one supervisor.

child pipes       children.py: one JSON line each way
forked children   fork_server.py: a server that has imported torch forks them
ranks             rank_child.py, with heartbeats (heartbeat.py)
all of a group    supervisor.py: Ready | Said | Silent | Lost, here or on Dask workers
"""
