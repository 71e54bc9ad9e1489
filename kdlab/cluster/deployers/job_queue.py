"""Machines from a batch system (SLURM, PBS, SGE, LSF), through dask-jobqueue."""

import logging
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from distributed.utils import get_ip

from kdlab.cluster.deployers.deployer import Deployer, StandingScheduler
from kdlab.cluster.transport.roles import TEACHER
from kdlab.cluster.transport.security import Files, dask_security
from kdlab.config import Fault, Range, register
from kdlab.errors import BadInput


class _System(NamedTuple):
    cluster: str  # of dask-jobqueue
    command: str  # that submits a job
    pays: str  # dask-jobqueue's name of the account
    # Directives that ask for resources. Others name programs, files and variables, which are up
    # to the site and belong in Dask's configuration.
    resources: str


_SYSTEMS = {
    "slurm": _System(
        *("SLURMCluster", "sbatch", "account"),
        "--(gres|gpus|gpus-per-node|gpus-per-task|constraint|qos|nodelist|exclude|exclusive"
        "|reservation|licenses|mem-per-gpu|tmp|nice)",
    ),
    "pbs": _System("PBSCluster", "qsub", "account", "-[lp]"),
    "sge": _System("SGECluster", "qsub", "project", "-(l|pe|p)"),
    "lsf": _System("LSFCluster", "bsub", "project", "-(R|gpu|sla)"),
}
_AS_HOST = (
    *("--resources", f"{TEACHER}=1", "--no-dashboard"),
    *("--worker-class", "kdlab.cluster.transport.roles.TeacherWorker"),
)
# Words of a job script that neither a shell nor the batch system can execute.
_WORD = re.compile(r"\w[\w.:@/+,-]*")
_PATH = re.compile(r"[\w./+-]+")
_VALUE = r"([= ][\w.:,=/@+*\[\]() -]+)?"


@register("cluster/deployers/job_queue")
@dataclass(frozen=True, kw_only=True)
class JobQueueMachines(Deployer):
    """Jobs of a batch system; each is a machine for teachers and ends when it is not needed.

    The first commands of a job (`module load`, activating an environment) depend on your site and
    are shell: they belong in Dask's file ~/.config/dask/jobqueue.yaml, under
    jobqueue.SYSTEM.job-script-prologue, never in an experiment. Certificates are in the run's
    folder, which jobs must see at the same path.

    system: which batch system.
    cores: of a job.
    memory: of a job, for example 16GB.
    queue: partition or queue; null is the site's default.
    account: that pays; null is the site's default.
    walltime: after which the batch system ends a job, for example 02:00:00; its teachers are
        replaced by those of another job if they are needed.
    directives: further ones that ask for resources, for example --gres=gpu:1.
    """

    needs = ("dask_jobqueue", "jobqueue")

    system: Literal["slurm", "pbs", "sge", "lsf"] = "slurm"
    cores: Annotated[int, Range(ge=1)] = 1
    memory: str = "8GB"
    queue: str | None = None
    account: str | None = None
    walltime: str | None = None
    directives: tuple[str, ...] = ()

    def cross_faults(self) -> Iterator[Fault]:
        for name in ("memory", "queue", "account", "walltime"):
            value = getattr(self, name)
            if value is not None and not _WORD.fullmatch(value):
                yield Fault(name, f"is {value!r}, which is not one word")
        for directive in self.directives:
            if not re.fullmatch(_SYSTEMS[self.system].resources + _VALUE, directive):
                yield Fault(
                    "directives",
                    f"has {directive!r}, which asks for no resource of {self.system}; others "
                    "belong in ~/.config/dask/jobqueue.yaml, as job-extra-directives",
                )

    def check(self) -> None:
        """Check that the batch system and dask-jobqueue are installed.

        Raises:
            BadInput: one of them is missing.
        """
        super().check()
        command = _SYSTEMS[self.system].command
        if shutil.which(command) is None:
            raise BadInput(
                f"teacher_pool.machines: {self.system} takes jobs through {command}, which is "
                "not on this machine. Nothing was started. Start the run on a login node, or "
                "name another batch system."
            )

    def reached_at(self) -> str:
        return str(get_ip())

    def cluster(self, scheduler: str, files: Files, folder: Path) -> Any:
        """Cluster of dask-jobqueue; `job_script()` shows the job that it submits.

        Raises:
            BadInput: a path has characters that a shell interprets.
        """
        import dask_jobqueue  # an extra  # noqa: PLC0415

        for path in (*files.values(), str(folder)):
            if not _PATH.fullmatch(path):
                raise BadInput(
                    f"{path} has characters that a job script cannot hold: letters, digits and "
                    "./_+- are allowed. Put the runs elsewhere: KDLAB_RUNS=FOLDER."
                )
        system = _SYSTEMS[self.system]
        jobs: dict[str, Any] = {
            "cores": self.cores,
            "memory": self.memory,
            "processes": 1,
            "queue": self.queue,
            system.pays: self.account,
            "walltime": self.walltime,
            "job_extra_directives": list(self.directives),
            "worker_extra_args": [*_AS_HOST],
            "log_directory": str(folder),
        }
        # Unset options come from the site's Dask configuration.
        jobs = {name: value for name, value in jobs.items() if value not in (None, [])}
        cluster = getattr(dask_jobqueue, system.cluster)(
            scheduler_cls=StandingScheduler,
            scheduler_options={"address": scheduler},
            security=dask_security(files),
            shared_temp_directory=str(folder),
            silence_logs=logging.WARNING,
            **jobs,
        )
        cluster.shutdown_scheduler = False
        return cluster
