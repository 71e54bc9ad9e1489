"""How processes of a pool talk: Dask's RPC, the label wire, messages, keys, roles of workers."""
