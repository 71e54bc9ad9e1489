"""Flow control and elasticity at the scale they are for, with the shipped defaults.

Students train by waiting, teachers compute by waiting; readers' decisions, coordinator, leases
and wires are real, over real sockets. Each case stands beside its simulation, which runs the
same machines with the same defaults. Longest time: about a minute for each case and part.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.harness import until
from benchmarks.scale import StudentsSeen, TeachersSeen, asked_of, emulated_students
from benchmarks.scene import Scene
from benchmarks.students import ImageCase, deployment_for, samples_of
from kdlab.cluster.pool import RunningPool
from kdlab.cluster.schedulers import start_scheduler
from kdlab.cluster.wires.wire import ask
from kdlab.errors import SchedulerUnreachable
from kdlab.report.figures import Figure, Say, at, figure
from kdlab.simulate.edl_dist import EdlDist, Fleet, PoolCase
from kdlab.simulate.mishaps import Behaviour, to_be_had
from kdlab.simulate.pool_simulation import PoolOutcome, Simulation, in_vain, settled_at
from kdlab.simulate.profile import RateProfile
from kdlab.supervision.children import Child

_IMAGES = ImageCase(8, 64, 1)
_CALM = Behaviour(jitter=0.1)
WARM_UP_S, _MEASURE_S = 15.0, 25.0
_SIMULATED_S = 90.0
_UP_S = 0.5  # the leases that a scheduler brings back count from its start


@dataclass(frozen=True, slots=True)
class Setting:
    """One student and its teachers: (how many, samples/s of each)."""

    name: str
    teachers: tuple[tuple[int, float], ...]
    demand: float  # samples/s
    batch: int
    order: Literal["any", "strict"] = "any"
    how: Behaviour = _CALM

    @property
    def capacity(self) -> float:
        return sum(count * rate for count, rate in self.teachers)


SETTINGS = (
    Setting("100x38_by_256", ((100, 38.0),), 2500.0, 256),
    Setting("40x38_by_256", ((40, 38.0),), 1400.0, 256),
    Setting("50x20_by_64", ((50, 20.0),), 950.0, 64),
    Setting("8x2000_by_1024", ((8, 2000.0),), 15000.0, 1024),
    Setting("mixed_10x110_2x4.5_strict", ((10, 110.0), (2, 4.5)), 1050.0, 64, "strict"),
    Setting("mixed_10x110_4x4.5_any", ((10, 110.0), (4, 4.5)), 1060.0, 64),
)


def measure(say: Say) -> list[Figure]:
    figures = []
    for setting in SETTINGS:
        outcome = simulated(setting)
        figures += _of_simulation(setting, outcome)
        say(f"{setting.name}: simulated {outcome.samples_per_second / setting.demand:.3f}")
        figures += real(setting, say)
    return [*figures, *churn(say), *restart(say)]


# Simulated


def simulated(setting: Setting) -> PoolOutcome:
    (count, rate), *more = setting.teachers
    case = PoolCase(
        name=setting.name,
        student=RateProfile(samples_per_second=setting.demand),
        teacher=RateProfile(samples_per_second=rate),
        teachers=count,
        more=tuple(
            Fleet(teacher=RateProfile(samples_per_second=r), count=n) for n, r in more
        ),
        batch=setting.batch,
        steps=max(20, round(_SIMULATED_S * setting.demand / setting.batch)),
        order=setting.order,
    )
    spec = EdlDist(cases=(case,), **setting.how.fields())
    return Simulation(spec, case).run()


def _of_simulation(setting: Setting, outcome: PoolOutcome) -> list[Figure]:
    rate = outcome.samples_per_second / setting.demand
    lost = outcome.lost + outcome.repeated
    held, vain = outcome.held_over_needed, outcome.released_in_vain
    return at(
        setting.name,
        figure("scale/simulated/rate_over_demand", rate, "ratio"),
        figure("scale/simulated/teachers_held_over_needed", held, "ratio"),
        figure("scale/simulated/settle_s", outcome.settle_s, "s"),
        figure("scale/simulated/released_in_vain", vain, "teachers"),
        figure("scale/simulated/lost_or_repeated", lost, "samples"),
    )


# Real processes


@dataclass
class Pair:
    """A pool and its student, both up."""

    setting: Setting
    pool: RunningPool
    students: Child
    began: float

    def looked(self) -> StudentsSeen:
        return asked_of(self.students, StudentsSeen)

    def rate(self, seconds: float) -> tuple[float, StudentsSeen]:
        """Samples/s trained on in so long, and what was seen last."""
        before = self.looked()
        time.sleep(seconds)  # the time of the measurement
        after = self.looked()
        return self.setting.batch * after.steps_per_second(before), after


@contextmanager
def up(setting: Setting, **rules: float) -> Iterator[Pair]:
    (count, rate), *more = setting.teachers
    with Scene(samples_of(_IMAGES)) as scene:
        pool = scene.emulated(
            setting.batch,
            teachers=count,
            t_t=rate,
            more=tuple((r, n) for n, r in more),
            **setting.how.fields(),
        )
        began = time.monotonic()
        students = emulated_students(
            scene,
            pool,
            t_s=setting.demand,
            batch=setting.batch,
            rules={"order": setting.order, **rules},
        )
        yield Pair(setting, pool, students, began)


@dataclass(frozen=True, slots=True)
class SeenOutcome:
    """What real processes made of a setting."""

    share: float  # trained on, of what could be had after the warm-up
    settled: float  # seconds
    seen: StudentsSeen
    line: str  # for people

    @property
    def lost(self) -> int:
        """Batches that were lost or came twice."""
        return self.seen.lost + self.seen.repeated


def watched(setting: Setting, seconds: float = _MEASURE_S) -> SeenOutcome:
    """Once it is up and has warmed up, for so long."""
    with up(setting) as pair:
        time.sleep(WARM_UP_S)
        before = pair.looked()
        rate, seen = pair.rate(seconds)
        had = asked_of(pair.pool.machines.children[0], TeachersSeen).capacities
    could = to_be_had(had, setting.demand, before.time, seen.time) / (
        seen.time - before.time
    )
    reach = min(setting.demand, setting.capacity)
    settled = settled_at([pair.began, *seen.ended[0]], setting.batch, reach) - pair.began
    line = (
        f"{setting.name}: {rate / could:.3f} of {could:.0f} samples/s, settled after "
        f"{settled:.1f} s; teachers give {had[-1][1]:.0f}, {sum(seen.held):.0f} held, "
        f"{len(seen.asked[0])} asked for; waited {seen.waited_s[0]:.1f} s; parts: "
        f"{seen.resends} sent again, {seen.hedges} hedged"
    )
    return SeenOutcome(rate / could, settled, seen, line)


def real(setting: Setting, say: Say) -> list[Figure]:
    found = watched(setting)
    say(found.line)
    held, seen = sum(found.seen.held) / setting.demand, found.seen
    vain = sum(map(in_vain, seen.released, seen.asked))
    return at(
        setting.name,
        figure("scale/rate_over_demand", found.share, "ratio"),
        figure("scale/teachers_held_over_needed", held, "ratio"),
        figure("scale/settle_s", found.settled, "s"),
        figure("scale/released_in_vain", vain, "teachers"),
        figure("scale/lost_or_repeated", found.lost, "batches"),
    )


def churn(say: Say, seconds: float = 60.0) -> list[Figure]:
    """One teacher ends without a word and one joins, each second."""
    setting = SETTINGS[0]
    with up(setting) as pair:
        time.sleep(WARM_UP_S)
        calm, _ = pair.rate(_MEASURE_S)
        before = pair.looked()
        for _ in range(round(seconds)):
            pair.pool.machines.children[0].send(moves=[{"lose": 1, "join": 1}])
            time.sleep(1.0)  # the pace of the churn
        after = pair.looked()
    rate = setting.batch * after.steps_per_second(before)
    say(f"churn: {rate:.0f} samples/s, calm {calm:.0f}; {after.resends} parts sent again")
    lost = after.lost + after.repeated
    return at(
        setting.name,
        figure("scale/churn_over_calm", rate / calm, "ratio"),
        figure("scale/churn_lost_or_repeated", lost, "batches"),
    )


def restart(say: Say) -> list[Figure]:
    """The scheduler is killed and started again at its address."""
    setting = SETTINGS[1]
    with up(setting) as pair:
        time.sleep(WARM_UP_S)
        calm, _ = pair.rate(10.0)
        pool = pair.pool
        assert pool.scheduler is not None
        pool.scheduler.process.kill()
        pool.scheduler.stop()
        killed = time.monotonic()
        pool.scheduler, _ = start_scheduler(
            replace(deployment_for(samples_of(_IMAGES)), batch=setting.batch),
            pool.folder,
            ttl_s=6.0,
            tls=pool.tls,
            port=int(pool.address.rsplit(":", 1)[1]),
        )
        back = time.monotonic()
        wanted = 0.9 * sum(n for n, _ in setting.teachers)
        until(
            lambda: _renewed(pool, time.monotonic() - back) >= wanted,
            patience_s=60.0,
            missing=f"fewer than {wanted:g} teachers serve after the restart",
            tick_s=0.05,
        )
        again_s = time.monotonic() - back
        during, seen = pair.rate(15.0)
    say(
        f"scheduler killed, up after {back - killed:.1f} s, teachers serve {again_s:.1f} s "
        f"later; {during / calm:.2f} of the calm rate, {seen.resends} parts sent again"
    )
    return at(
        "scheduler",
        figure("scale/restart_s", again_s, "s"),
        figure("scale/restart_rate_over_calm", during / calm, "ratio"),
        figure("scale/restart_lost_or_repeated", seen.lost + seen.repeated, "batches"),
    )


def _renewed(pool: RunningPool, up_s: float) -> int:
    """Teachers that a student holds and that were heard of since the scheduler is back."""
    try:
        status = ask(pool.address, "kdlab_status", tls=pool.tls)
    except SchedulerUnreachable:
        return 0
    return sum(
        t["state"] == "assigned" and t["silent_s"] < up_s - _UP_S
        for t in status["teachers"]
    )
