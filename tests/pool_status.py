"""Made-up states of a pool, as a coordinator reports them."""

from kdlab.cluster.coordination.coordinator_messages import (
    PoolStatus,
    StudentStatus,
    TeacherStatus,
)
from kdlab.papers.edl_dist.teacher_info import TeacherInfo


def facts(name="a", pid=1, **fields):
    usual = {"device": "cpu", "threads": 1, "best_batch": 8, "by_reference": True}
    return TeacherInfo(name=name, pid=pid, **usual | {"wire_port": 9} | fields)


def teacher(name, state="free", t_t=100.0, pid=1):
    info = None if state == "registered" else facts(name, pid)
    return TeacherStatus(f"tcp://{name}", state, {}, t_t, 0.0, info)


def status(*teachers, missing=0.0):
    """State of a pool whose one student, if any, misses so many samples/s."""
    students = {"s": StudentStatus(missing, 0.0, True)} if missing else {}
    return PoolStatus(
        deployed="f", expired=0, renewals=0, students=students, teachers=teachers
    )
