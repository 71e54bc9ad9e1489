"""Communication within a pool: Dask's RPC, the label wire, messages, keys, roles of workers."""
