"""`dask scheduler --preload kdlab.cluster.coordinator`: a coordinator in any Dask scheduler."""

from distributed import Scheduler

from kdlab.cluster.coordination.coordinator import Coordinator


async def dask_setup(scheduler: Scheduler) -> None:
    """Called by Dask, with the scheduler it has started."""
    plugin = Coordinator()
    scheduler.add_plugin(plugin)
    await plugin.start(scheduler)
