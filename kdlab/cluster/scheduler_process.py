"""A Dask scheduler with the Coordinator in it, as a process of its own."""

import asyncio
import logging

from distributed import Scheduler

from kdlab.cluster import security
from kdlab.cluster.children import announce, configured
from kdlab.cluster.coordinator import Coordinator
from kdlab.cluster.wire import settle


class QuietScheduler(security.NoHttp, Scheduler):
    """A Dask scheduler without web pages."""


async def main() -> None:
    config = configured()
    settle()
    security.use(config["tls"])
    logging.getLogger("distributed").setLevel(logging.WARNING)
    plugin = Coordinator(**config["coordinator"])
    async with QuietScheduler(
        host=security.listen_address(config["host"], config["port"]),
        dashboard=False,
        dashboard_address=None,
    ) as scheduler:
        scheduler.add_plugin(plugin)
        await plugin.start(scheduler)
        announce(address=scheduler.address)
        await scheduler.finished()


if __name__ == "__main__":
    asyncio.run(main())
