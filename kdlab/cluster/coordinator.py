"""`dask scheduler --preload kdlab.cluster.coordinator`: a coordinator in any Dask scheduler."""

from distributed import Scheduler

from kdlab.cluster.coordination.coordinator import Coordinator


async def dask_setup(scheduler: Scheduler) -> None:
    """Entry point of Dask's preload: install a coordinator in the scheduler."""
    plugin = Coordinator()
    scheduler.add_plugin(plugin)
    await plugin.start(scheduler)
