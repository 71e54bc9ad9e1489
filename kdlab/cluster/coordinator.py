"""`dask scheduler --preload kdlab.cluster.coordinator`: a coordinator in any Dask scheduler."""

from kdlab.cluster.coordination.coordinator import dask_setup

__all__ = ["dask_setup"]
