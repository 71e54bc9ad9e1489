"""Machines that a batch system gives: SLURM, PBS, SGE, LSF, by dask-jobqueue."""

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
    command: str  # that hands a job in
    pays: str  # what dask-jobqueue calls the account that pays
    # Directives that ask for resources. Others name programs, files and variables: they are a
    # matter of the site, and stand in Dask's own file.
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
# Words of a job script in which neither a shell nor the batch system finds a thing to carry out.
_WORD = re.compile(r"\w[\w.:@/+,-]*")
_PATH = re.compile(r"[\w./+-]+")
_VALUE = r"([= ][\w.:,=/@+*\[\]() -]+)?"


@register("cluster/deployers/job_queue")
@dataclass(frozen=True, kw_only=True)
class JobQueueMachines(Deployer):
    """Jobs of a batch system; each is a machine for teachers, and ends when it is not needed.

    What a job does first (`module load`, activating an environment) is a matter of your site, and
    shell: it stands in Dask's own file, ~/.config/dask/jobqueue.yaml, under
    jobqueue.SYSTEM.job-script-prologue, never in an experiment. Certificates lie in the run's
    folder, which jobs must see at the same path.

    system: which batch system.
    cores: of a job.
    memory: of a job, for example 16GB.
    queue: partition or queue; null is the site's default.
    account: who pays; null is the site's default.
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
                    "stand in ~/.config/dask/jobqueue.yaml, as job-extra-directives",
                )

    def check(self) -> None:
        """Whether the batch system is here.

        Raises:
            BadInput: it is not, or dask-jobqueue is not.
        """
        super().check()
        command = _SYSTEMS[self.system].command
        if shutil.which(command) is None:
            raise BadInput(
                f"teacher_pool.machines: jobs of {self.system} are handed in with {command}, which "
                "is not on this machine. Nothing was started. Start the run on a login node, or "
                "name another batch system."
            )

    def reached_at(self) -> str:
        return str(get_ip())

    def cluster(self, scheduler: str, files: Files, folder: Path) -> Any:
        """The cluster of dask-jobqueue; `job_script()` shows what it hands in.

        Raises:
            BadInput: a path in which a shell would find more than a path.
        """
        import dask_jobqueue  # an extra  # noqa: PLC0415

        for path in (*files.values(), str(folder)):
            if not _PATH.fullmatch(path):
                raise BadInput(
                    f"{path} has characters that a job script cannot hold: letters, digits and "
                    "./_+- are taken. Put the runs elsewhere: KDLAB_RUNS=FOLDER."
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
        # What is not said is the site's to say, in Dask's own configuration.
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
