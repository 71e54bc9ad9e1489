"""A Dask scheduler with the Coordinator in it, as a process of its own."""

import asyncio
import logging

from distributed import Scheduler

from kdlab.cluster.children import announce, configured
from kdlab.cluster.coordinator import Coordinator
from kdlab.cluster.wire import settle


async def main() -> None:
    config = configured()
    settle()
    logging.getLogger("distributed").setLevel(logging.WARNING)
    plugin = Coordinator(config["ttl_s"], config["deployment"])
    async with Scheduler(
        host=config["host"], port=0, dashboard=False, dashboard_address=None
    ) as scheduler:
        scheduler.add_plugin(plugin)
        await plugin.start(scheduler)
        announce(address=scheduler.address)
        await scheduler.finished()


if __name__ == "__main__":
    asyncio.run(main())
