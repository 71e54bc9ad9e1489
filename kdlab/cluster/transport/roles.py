"""Roles of a cluster's workers: teachers never get ranks to train."""

from distributed import Worker

from kdlab.cluster.transport.security import NoHttp

TEACHER = "kdlab_teacher"  # resources of Dask workers; `dask worker --resources` sets them
RANK = "kdlab_rank"

WITHDRAWN, FAILED, REFUSED, NO_SCHEDULER = 0, 1, 2, 3  # exit codes of a teacher
MEANT_TO_END = (WITHDRAWN, REFUSED)  # such a teacher is not restarted


class TeacherWorker(NoHttp, Worker):
    """A Dask worker without web pages."""
