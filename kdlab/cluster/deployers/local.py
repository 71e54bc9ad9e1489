"""Machines that are processes on this one, to try out a pool that follows its demand."""

import logging
from dataclasses import dataclass
from pathlib import Path

from kdlab.cluster.deployers.deployer import (
    WORKER_OPTIONS,
    Deployer,
    HostNanny,
    StandingCluster,
)
from kdlab.cluster.transport.security import Files
from kdlab.config import register


@register("cluster/deployers/local")
@dataclass(frozen=True, kw_only=True)
class LocalMachines(Deployer):
    """Dask workers on this machine, as in `LocalCluster`; each hosts teachers."""

    local = True

    def cluster(self, scheduler: str, files: Files, folder: Path) -> StandingCluster:
        quiet = {"silence_logs": logging.WARNING}
        place = {"host": "127.0.0.1", "protocol": "tls", "local_directory": str(folder)}
        options = {**WORKER_OPTIONS, **place, **quiet, "tls": files}
        worker = {"cls": HostNanny, "options": options}
        return StandingCluster(scheduler, files, worker=worker, name="local", **quiet)
