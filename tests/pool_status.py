"""What a coordinator says of its pool, made up."""

from kdlab.cluster.coordination.coordinator_messages import (
    PoolStatus,
    StudentStatus,
    TeacherStatus,
)
from kdlab.papers.edl_dist.teacher_info import TeacherInfo


def facts(name="a", pid=1, **other):
    usual = {"device": "cpu", "threads": 1, "best_batch": 8, "by_reference": True}
    return TeacherInfo(name=name, pid=pid, **usual | {"wire_port": 9} | other)


def teacher(name, state="free", t_t=100.0, pid=1):
    told = None if state == "registered" else facts(name, pid)
    return TeacherStatus(f"tcp://{name}", state, {}, t_t, 0.0, told)


def status(*teachers, missing=0.0):
    """Of a pool whose one student, if any, misses so many samples/s."""
    students = {"s": StudentStatus(missing, 0.0, True)} if missing else {}
    return PoolStatus(
        deployed="f", expired=0, renewals=0, students=students, teachers=teachers
    )
