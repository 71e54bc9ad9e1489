"""Process of a Dask scheduler with the Coordinator in it."""

import asyncio
import logging

from distributed import Scheduler

from kdlab.cluster.child_configs import SchedulerConfig
from kdlab.cluster.coordination.coordinator import Coordinator
from kdlab.cluster.transport import security
from kdlab.cluster.transport.wire import configure_dask
from kdlab.supervision.children import announce, configured


class QuietScheduler(security.NoHttp, Scheduler):
    """A Dask scheduler without web pages."""


async def main() -> None:
    config = configured(SchedulerConfig)
    configure_dask()
    security.enable_tls(config.tls)
    logging.getLogger("distributed").setLevel(logging.WARNING)
    plugin = Coordinator(
        *(config.ttl_s, config.deployment, config.store_url),
        *(config.store_prefix, config.journal),
    )
    async with QuietScheduler(
        host=security.listen_address(config.host, config.port),
        dashboard=False,
        dashboard_address=None,
    ) as scheduler:
        scheduler.add_plugin(plugin)
        await plugin.start(scheduler)
        announce(address=scheduler.address)
        await scheduler.finished()


if __name__ == "__main__":
    asyncio.run(main())
