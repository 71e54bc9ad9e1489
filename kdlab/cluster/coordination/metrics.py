"""Prometheus metrics of a pool, at /metrics of its scheduler.

Dask's scheduler serves that page where prometheus-client is installed, with all registered
metrics. Numbers are read from the coordinator at each request, and cost nothing in between.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, get_args

from kdlab.cluster.coordination.coordinator_messages import (
    PoolStatus,
    StudentStatus,
    TeacherStatus,
)
from kdlab.papers.edl_dist.fair_shares import LeaseState
from kdlab.papers.edl_dist.teacher_info import TeacherInfo

if TYPE_CHECKING:  # an extra
    from prometheus_client.core import Metric

# Counter or gauge, name, description, and the number.
_OF_A_TEACHER: tuple[tuple[bool, str, str, Callable[[TeacherStatus], float]], ...] = (
    (False, "samples_per_second", "t_t: samples/s while it computes", lambda t: t.t_t),
    (False, "silent_seconds", "since it renewed its lease", lambda t: t.silent_s),
    (False, "queued_requests", "that wait for it", lambda t: _facts(t).queued or 0),
    (False, "data_here_share", "of the data, on its machine", lambda t: _facts(t).here),
    (True, "answered_requests", "since it came up", lambda t: _facts(t).answered or 0),
    (
        True,
        "shared_samples",
        "answered without computing: another student had asked for the same",
        lambda t: _facts(t).shared or 0,
    ),
)
_OF_A_STUDENT: tuple[tuple[str, str, Callable[[StudentStatus], float]], ...] = (
    ("needs_samples_per_second", "t_s: what it would train", lambda s: s.t_s),
    ("gets_samples_per_second", "t_t of its teachers together", lambda s: s.rate),
    ("searching", "1: it could use one more teacher", lambda s: float(s.searching)),
)
# Metrics of a reader, by the names in its figures.
OF_READERS: Mapping[str, tuple[bool, str, str]] = {
    "labels": (True, "labels", "soft labels that arrived"),
    "volume": (False, "volume_samples", "with soft labels that wait to be trained on"),
    "in_flight": (False, "in_flight_samples", "sent to teachers, not answered yet"),
    "starved_s": (True, "starved_seconds", "that it stood still for want of soft labels"),
    "held_s": (
        True,
        "held_back_seconds",
        "of these, while a threshold kept a teacher idle",
    ),
    "resends": (True, "resent_requests", "their teacher was lost"),
    "hedges": (True, "hedged_requests", "asked of a second teacher, the first was late"),
    "queued_s": (True, "answers_queued_seconds", "of answers, before a busy teacher"),
    "views_s": (True, "answers_views_seconds", "of answers, until their views were made"),
    "computed_s": (
        True,
        "answers_computed_seconds",
        "of answers, while they were computed",
    ),
    "wire_s": (True, "answers_wire_seconds", "of answers, on the way there and back"),
}


def _facts(teacher: TeacherStatus) -> TeacherInfo:
    return teacher.facts or TeacherInfo()


def metrics_available() -> bool:
    """Check for prometheus-client, which Dask's metrics page needs."""
    return find_spec("prometheus_client") is not None


class PoolMetrics:
    """A collector of prometheus-client.

    Args:
        status: returns the pool's state.
    """

    def __init__(self, status: Callable[[], PoolStatus]) -> None:
        self._status = status

    def register(self) -> None:
        from prometheus_client import REGISTRY

        REGISTRY.register(self)

    def unregister(self) -> None:
        from prometheus_client import REGISTRY

        REGISTRY.unregister(self)

    def collect(self) -> "Iterator[Metric]":
        """Yield metric families, as prometheus-client asks."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = self._status()
        states = GaugeMetricFamily("kdlab_teachers", "by state", labels=["state"])
        for state in get_args(LeaseState):
            states.add_metric([state], sum(t.state == state for t in status.teachers))
        yield states
        yield CounterMetricFamily(
            "kdlab_leases_expired", "teachers that fell silent", value=status.expired
        )
        yield CounterMetricFamily("kdlab_renewals", "of leases", value=status.renewals)
        for grows, name, what, number in _OF_A_TEACHER:
            kind = CounterMetricFamily if grows else GaugeMetricFamily
            family = kind(f"kdlab_teacher_{name}", what, labels=["teacher", "student"])
            for teacher in status.teachers:
                who = _facts(teacher).name or teacher.address
                whose = ", ".join(sorted(teacher.shares))
                family.add_metric([who, whose], number(teacher))
            yield family
        for name, what, needed in _OF_A_STUDENT:
            family = GaugeMetricFamily(f"kdlab_student_{name}", what, labels=["student"])
            for student, asks in status.students.items():
                family.add_metric([student], needed(asks))
            yield family
        for key, (grows, name, what) in OF_READERS.items():
            kind = CounterMetricFamily if grows else GaugeMetricFamily
            family = kind(f"kdlab_student_{name}", what, labels=["student"])
            for student, asks in status.students.items():
                family.add_metric([student], asks.figures.get(key, 0.0))
            yield family
