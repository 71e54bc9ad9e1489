"""Machines that are processes on this one: to try out a pool that follows its demand."""

import logging
from dataclasses import dataclass
from pathlib import Path

from distributed import SpecCluster

from kdlab.cluster.deployers.deployer import (
    WORKER_OPTIONS,
    DaskMachines,
    Deployer,
    HostNanny,
    StandingScheduler,
)
from kdlab.cluster.wires.security import Files, of_all_roles
from kdlab.config import register


@register("cluster/deployers/local")
@dataclass(frozen=True, kw_only=True)
class LocalMachines(Deployer):
    """Dask workers on this machine, as `LocalCluster` has them; each hosts teachers."""

    def up(self, scheduler: str, files: Files, folder: Path) -> DaskMachines:
        options = {**WORKER_OPTIONS, "host": "127.0.0.1", "protocol": "tls"}
        worker = {
            "cls": HostNanny,
            "options": {
                **options,
                "tls": files,
                "local_directory": str(folder),
                "silence_logs": logging.WARNING,
            },
        }
        return DaskMachines(
            SpecCluster(
                scheduler={"cls": StandingScheduler, "options": {"address": scheduler}},
                worker=worker,
                security=of_all_roles(files),
                name="local",
                silence_logs=logging.WARNING,
                shutdown_scheduler=False,
            )
        )
