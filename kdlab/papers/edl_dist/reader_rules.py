"""Settings, rules and teachers of the DistilReader.

`ReaderSettings` are what a user chooses; a spec with these fields is one (cluster/served.py).
"""

from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Literal

from kdlab.events.teachers import TeacherJoined
from kdlab.papers.edl_dist.fair_shares import Lease
from kdlab.papers.edl_dist.hybrid_schedule import Policy
from kdlab.papers.edl_dist.teacher_info import TeacherInfo
from kdlab.ranges import POSITIVE, SHARE, Range

BatchOrder = Literal["any", "strict"]


@dataclass(frozen=True, slots=True)
class Teacher:
    """A teacher as its student sees it."""

    address: str
    lease: int  # its epoch
    t_t: float  # samples/s (3.2), of this student's share
    best_batch: int  # samples it takes at once, at most
    draining: bool = False
    info: TeacherInfo = field(default_factory=TeacherInfo)  # for people
    min_batch: int = 1  # samples: its efficiency falls off below
    share: float = 1.0  # of the teacher; below 1 where several students share it

    @property
    def pace(self) -> float:
        """Samples/s that this student may ask for; unlimited where it has all of the teacher."""
        return self.t_t if self.share < 1.0 else inf

    @property
    def whole_t_t(self) -> float:
        """Samples/s of all of the teacher, as stated by itself."""
        return self.t_t / self.share

    @classmethod
    def from_lease(cls, lease: Lease, info: TeacherInfo) -> "Teacher":
        most, least = info.best_batch, info.min_batch or 1
        drains = lease.state == "draining"
        return cls(
            lease.teacher, lease.epoch, lease.t_t, most, drains, info, least, lease.share
        )

    @property
    def name(self) -> str:
        return self.info.name or self.address

    @property
    def engine(self) -> str:
        """The inference engine, for people; empty for plain PyTorch."""
        return self.info.engine or ""

    def joined(self) -> TeacherJoined:
        """The event of its assignment to this student."""
        info = self.info
        shown = ("threads", "by_reference", "engine")
        return TeacherJoined(
            name=self.name,
            address=self.address,
            lease=self.lease,
            t_t=self.t_t,
            device=info.device or None,
            pid=info.pid or None,
            more={k: v for k in shown if (v := getattr(info, k)) is not None},
        )


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """Settings of a reader that users choose.

    policy: when to ask for one more teacher; `paper` is Algorithm 1 as printed.
    cache_views: keep the soft labels of this many views per sample and ask for each only
        once; training then repeats these views (epoch e sees view e mod cache_views), as
        with `soft_labels/cached`, in the same format. null keeps none.
    order: `any` trains on batches as they arrive, `strict` in the plan's order. A group of
        several ranks is always strict.
    per_teacher: requests of less than a second in flight per teacher, at least.
    check_share: share of the answers that a second teacher computes again, to compare;
        a teacher whose soft labels are wrong is left out. 0 checks none.
    hedge: ask a second teacher too when one is overdue, or too late for the student.
    deadline_s: for one request; then its teacher is given up and avoided for a while.
    wait_s: how long the student waits when no teacher is left, before the run fails.
    settle_s, window_s: of the guarded policy: time until a change shows, and the
        shortest observation before a teacher is released.
    slots: batches that are ready for the trainer in shared memory.
    """

    policy: Policy = "guarded"
    cache_views: Annotated[int, Range(ge=1)] | None = None
    order: BatchOrder = "any"
    per_teacher: Annotated[int, Range(ge=1)] = 2
    check_share: Annotated[float, SHARE] = 0.001
    hedge: bool = True
    deadline_s: Annotated[float, POSITIVE] = 30.0
    wait_s: Annotated[float, POSITIVE] = 120.0
    settle_s: Annotated[float, POSITIVE] = 3.0
    window_s: Annotated[float, POSITIVE] = 10.0
    slots: Annotated[int, Range(ge=2, le=1024)] = 8


@dataclass(frozen=True, kw_only=True)
class Rules(ReaderSettings):
    """Settings of a reader with the facts of its run. Thresholds in samples, times in seconds."""

    t_s: float  # samples/s of the student that never waits (3.2: "without restriction")
    lt: int  # lower threshold, Algorithm 1, line 10; the paper gives no value
    ut: int  # upper threshold, line 4; the paper gives no value
    part_s: float = 0.5  # of a teacher's work in one part
    max_in_flight: int | None = None  # samples: limited by the memory for their inputs
    # 3.2: "average size of a combination of input data and soft labels"; used for S(t), Formula 2
    sample_mb: float = 0.0
