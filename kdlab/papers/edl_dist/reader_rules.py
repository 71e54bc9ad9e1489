"""What the DistilReader is given: its rules, and its teachers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kdlab.events.teachers import TeacherJoined
from kdlab.papers.edl_dist.hybrid_schedule import Policy

BatchOrder = Literal["any", "strict"]


@dataclass(frozen=True, slots=True)
class Teacher:
    """A teacher as its student sees it."""

    address: str
    lease: int
    t_t: float  # samples/s
    best_batch: int  # samples it takes at once, at most
    draining: bool = False
    facts: Mapping[str, object] = field(default_factory=dict)  # name, device: for people
    min_batch: int = 1  # samples: its efficiency falls off below

    @property
    def name(self) -> str:
        return str(self.facts.get("name", self.address))

    @property
    def engine(self) -> str:
        """What computes, for people; empty where it is PyTorch as it is."""
        return str(self.facts.get("engine", ""))

    def joined(self) -> TeacherJoined:
        """The event that it serves this student now."""
        known = ("name", "device", "pid")
        device, pid = self.facts.get("device"), self.facts.get("pid")
        return TeacherJoined(
            name=self.name,
            address=self.address,
            lease=self.lease,
            t_t=self.t_t,
            device=None if device is None else str(device),
            pid=pid if isinstance(pid, int) else None,
            more={k: v for k, v in self.facts.items() if k not in known},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Thresholds in samples, times in seconds."""

    t_s: float  # samples/s of the student that never waits
    lt: int
    ut: int
    policy: Policy = "guarded"
    settle_s: float = 3.0
    window_s: float = 10.0
    order: BatchOrder = "any"
    per_teacher: int = 2  # parts in flight with each, at least
    part_s: float = 0.5  # of a teacher's work in one part
    max_in_flight: int | None = None  # samples: what their inputs may take of the memory
    slots: int = 8  # batches that lie ready for the trainer
    # Epoch e + cache_views needs the labels of epoch e again; None: no epoch does.
    cache_views: int | None = None
    hedge: bool = True
    check_share: float = 0.001  # of the answers: computed again by another teacher
    give_up_s: float = 30.0  # for one request
    wait_s: float = 120.0  # without any teacher, before the run fails
    sample_mb: float = 0.0  # of one stored input with its soft label, for Formula 2
