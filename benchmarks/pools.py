"""Flow control and elasticity of dozens of teachers with the defaults, real and simulated.

Students and teachers wait in place of computing; readers' decisions, coordinator, leases and
connections are real, over real sockets. Each pool is also simulated, with the same state machines.
In some pools teachers have unlike speeds and distances, or become slow, hang and are lost; the
pool and its simulation then have the same trace. A student's rate is compared with what it could
have had: its demand or, where that is less, the rates of all teachers that were well. Each pool
and part takes about a minute at most.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, Literal

from benchmarks.faults import endless
from benchmarks.harness import until
from benchmarks.scale import StudentsSeen, TeachersSeen, asked_of, emulated_students
from benchmarks.scene import Scene
from benchmarks.students import ImageCase, deployment_for, samples_of
from benchmarks.unlike import held_back
from kdlab.cluster.pool import RunningPool
from kdlab.cluster.schedulers import start_scheduler, status_of
from kdlab.cluster.served import Served
from kdlab.cluster.transport.wire import ask
from kdlab.codec import part_of
from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.errors import SchedulerUnreachable
from kdlab.models.patch_net import PatchNet
from kdlab.report.figures import EmitLine, Figure, at, figure
from kdlab.simulate.edl_dist import EdlDist, Fleet, PoolCase
from kdlab.simulate.mishaps import Behaviour, Move, to_be_had
from kdlab.simulate.pool_simulation import PoolOutcome, Simulation, in_vain, settled_at
from kdlab.simulate.profile import RateProfile
from kdlab.soft_labels.source import Batch
from kdlab.supervision.children import Child

_CALM = Behaviour(jitter=0.1)
_IMAGES, _PHOTOS = ImageCase(8, 64, 1), ImageCase(32, 64, 1)
_WARM_UP_S, _MEASURE_S, _AFTER_S = 15.0, 25.0, 15.0  # the last: after all mishaps
_UNLIKE_S = 45.0  # at least
_SIMULATED_S = 90.0
_UP_S = 0.5  # the leases that a scheduler brings back count from its start
_SHARE, _PERIOD_S = 0.3, 0.05  # of the time, of the teacher that is held back
_ENDLESS = 1e9  # samples/s that nobody gives
_WANTED = 0.85  # of what both real teachers give together


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


CALM = (
    Setting("100x38_by_256", ((100, 38.0),), 2500.0, 256),
    Setting("40x38_by_256", ((40, 38.0),), 1400.0, 256),
    Setting("50x20_by_64", ((50, 20.0),), 950.0, 64),
    Setting("8x2000_by_1024", ((8, 2000.0),), 15000.0, 1024),
    Setting("mixed_10x110_2x4.5_strict", ((10, 110.0), (2, 4.5)), 1050.0, 64, "strict"),
    Setting("mixed_10x110_4x4.5_any", ((10, 110.0), (4, 4.5)), 1060.0, 64),
)
_LOST = tuple(
    move
    for at_s in (20.0, 40.0)
    for move in (Move(at_s=at_s, lose=1, which="quickest"), Move(at_s=at_s + 5, join=1))
)
_QUICK, _HUNDRED = ((3, 2000.0), (70, 20.0)), ((100, 38.0),)


def _how(**more: Any) -> Behaviour:
    return Behaviour(jitter=0.1, request_s=3e-4, **more)


_FEW, _LOSES = _how(least_batch=8), _how(moves=_LOST)
_SLOW, _FOUR_SLOW = (_how(moves=(Move(at_s=20, slow=number),)) for number in (1, 4))
UNLIKE = (
    Setting("quick_lost_strict", _QUICK, 6600.0, 1024, "strict", _LOSES),
    Setting("quick_lost_any", _QUICK, 6600.0, 1024, "any", _LOSES),
    Setting("4x31_100x2_least_8", ((4, 31.0), (100, 2.0)), 300.0, 16, "strict", _FEW),
    Setting("10x110_60x4.5_least_8", ((10, 110.0), (60, 4.5)), 1290.0, 64, "strict", _FEW),
    Setting("1_of_66_slow", _HUNDRED, 2500.0, 256, "strict", _SLOW),
    Setting("4_of_66_slow", _HUNDRED, 2500.0, 256, "strict", _FOUR_SLOW),
    Setting("400ms_60x100", ((60, 100.0),), 2000.0, 256, "any", _how(latency_s=0.4)),
    Setting("500ms_200x100", ((200, 100.0),), 2000.0, 256, "any", _how(latency_s=0.5)),
    Setting("91x2_least_8", ((91, 2.0),), 160.0, 8, "strict", _FEW),
)


def measure(say: EmitLine) -> list[Figure]:
    figures = [f for setting in CALM for f in calm(setting, say)]
    figures += [f for case in (*UNLIKE, from_card("unlike")) for f in unlike(case, say)]
    return [*figures, *churn(say), *restart(say), real_teachers(say)]


def calm(setting: Setting, say: EmitLine) -> list[Figure]:
    """Measure a pool without mishaps, simulated and with real processes."""
    outcome, observed = simulated(setting), watched(setting, _MEASURE_S)
    say(f"{observed.line}; simulated {outcome.samples_per_second / setting.demand:.3f}")
    held = sum(observed.seen.held) / setting.demand
    vain = sum(map(in_vain, observed.seen.released, observed.seen.asked))
    names = {
        "rate_over_demand": "ratio",
        "teachers_held_over_needed": "ratio",
        "settle_s": "s",
        "released_in_vain": "teachers",
    }
    of_each = {
        "scale/simulated": (
            outcome.samples_per_second / setting.demand,
            outcome.held_over_needed,
            outcome.settle_s,
            outcome.released_in_vain,
        ),
        "scale": (observed.share, held, observed.settled, vain),
    }
    counted = {
        "scale/simulated": (outcome.lost + outcome.repeated, "samples"),
        "scale": (observed.seen.lost_or_repeated, "batches"),
    }
    figures = [
        figure(f"{where}/{name}/{setting.name}", value, unit)
        for where, values in of_each.items()
        for (name, unit), value in zip(names.items(), values, strict=True)
    ]
    return figures + [
        figure(f"{where}/lost_or_repeated/{setting.name}", number, unit)
        for where, (number, unit) in counted.items()
    ]


def unlike(setting: Setting, say: EmitLine) -> list[Figure]:
    """Measure a pool of unlike teachers or with mishaps, simulated and with real processes."""
    outcome = simulated(setting)
    simulated_share = outcome.samples_per_second / outcome.to_be_had
    last = max((move.at_s for move in setting.how.moves), default=0.0)
    observed = watched(setting, max(_UNLIKE_S, last + _AFTER_S - _WARM_UP_S))
    say(f"{observed.line}; simulated {simulated_share:.3f}")
    return at(
        setting.name,
        figure("scale/unlike", observed.share, "ratio"),
        figure("scale/unlike_simulated", simulated_share, "ratio"),
        figure("scale/unlike_lost_or_repeated", observed.seen.lost_or_repeated, "batches"),
    )


def from_card(name: str) -> Setting:
    """Return the pool and the trace of a simulation's card."""
    spec = construct(EdlDist, compose_card(f"simulations/edl_dist/{name}"))
    (case,) = spec.cases
    kinds = [(case.teachers, case.teacher), *((f.count, f.teacher) for f in case.more)]
    return Setting(
        f"card_{name}",
        tuple((number, kind.samples_per_second) for number, kind in kinds),
        case.student.samples_per_second,
        spec.batch,
        case.order or spec.order,
        part_of(spec, Behaviour),
    )


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
        """Return samples/s of the next seconds, and the students' figures after them."""
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
    """Outcome of a setting with real processes."""

    share: float  # trained on, of what could be had after the warm-up
    settled: float  # seconds
    seen: StudentsSeen
    line: str  # for people


def watched(setting: Setting, seconds: float) -> SeenOutcome:
    """Start a setting with real processes, let it warm up, and measure it for so long."""
    with up(setting) as pair:
        time.sleep(_WARM_UP_S)
        before = pair.looked()
        rate, seen = pair.rate(seconds)
        had = asked_of(pair.pool.machines.children[0], TeachersSeen).capacities
    passed = seen.time - before.time
    could = to_be_had(had, setting.demand, before.time, seen.time) / passed
    reach = min(setting.demand, setting.capacity)
    settled = settled_at([pair.began, *seen.ended[0]], setting.batch, reach) - pair.began
    line = (
        f"{setting.name}: {rate / could:.3f} of {could:.0f} samples/s, settled after "
        f"{settled:.1f} s; teachers give {had[-1][1]:.0f}, {sum(seen.held):.0f} held, "
        f"{len(seen.asked[0])} asked for; waited {seen.waited_s[0]:.1f} s; parts: "
        f"{seen.resends} sent again, {seen.hedges} hedged"
    )
    return SeenOutcome(rate / could, settled, seen, line)


def churn(say: EmitLine, seconds: float = 60.0) -> list[Figure]:
    """Each second one teacher ends without notice and another one joins."""
    setting = CALM[0]
    with up(setting) as pair:
        time.sleep(_WARM_UP_S)
        calm_rate, _ = pair.rate(_MEASURE_S)
        before = pair.looked()
        for _ in range(round(seconds)):
            pair.pool.machines.children[0].send(moves=[{"lose": 1, "join": 1}])
            time.sleep(1.0)  # the pace of the churn
        after = pair.looked()
    share = setting.batch * after.steps_per_second(before) / calm_rate
    say(
        f"churn: {share:.3f} of {calm_rate:.0f} samples/s, {after.resends} parts sent again"
    )
    return at(
        setting.name,
        figure("scale/churn_over_calm", share, "ratio"),
        figure("scale/churn_lost_or_repeated", after.lost_or_repeated, "batches"),
    )


def restart(say: EmitLine) -> list[Figure]:
    """The scheduler is killed and started again at its address."""
    setting = CALM[1]
    with up(setting) as pair:
        time.sleep(_WARM_UP_S)
        calm_rate, _ = pair.rate(10.0)
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
        f"later; {during / calm_rate:.2f} of the calm rate, {seen.resends} parts sent again"
    )
    return at(
        "scheduler",
        figure("scale/restart_s", again_s, "s"),
        figure("scale/restart_lost_or_repeated", seen.lost_or_repeated, "batches"),
    )


def _renewed(pool: RunningPool, up_s: float) -> int:
    """Count teachers that a student holds and that have reported to the new scheduler."""
    try:
        status = ask(pool.address, "kdlab_status", tls=pool.tls)
    except SchedulerUnreachable:
        return 0
    return sum(
        t["state"] == "assigned" and t["silent_s"] < up_s - _UP_S
        for t in status["teachers"]
    )


def real_teachers(say: EmitLine) -> Figure:
    """Two teachers that compute, on a thread each; one of them runs for part of the time."""
    with Scene(samples_of(_PHOTOS)) as scene:
        pool = scene.local(PatchNet(patch=4, depth=24, width=128), teachers=2, threads=1)

        def poll() -> list[float]:
            return sorted(t.t_t for t in status_of(pool.address, pool.tls).teachers)

        until(lambda: len(poll()) == 2 and poll()[0] > 0)
        with held_back(lambda: pool.machines.children[1].pid, _SHARE, _PERIOD_S):
            with closing(scene.served("greedy", Served(), _ENDLESS)) as source:
                # Then they know their rates.
                _trained(endless(source), _ENDLESS, _WARM_UP_S, poll)
            slow, quick = poll()
            demand = _WANTED * (slow + quick)
            source = scene.served("student", Served(order="strict"), demand)
            batches = endless(source)
            _trained(batches, demand, _WARM_UP_S, poll)
            rate, could = _trained(batches, demand, _UNLIKE_S, poll)
        stats = source.figures()
    say(
        f"real teachers of {quick:.0f} and {slow:.0f} samples/s: {rate / could:.3f} of "
        f"{could:.0f} samples/s; starved {stats['starved_s']:.1f} s, {stats['hedges']:.0f} parts "
        f"hedged, {stats['resends']:.0f} sent again"
    )
    return figure("scale/unlike/real_teachers", rate / could, "ratio")


def _trained(
    batches: Iterator[Batch], demand: float, seconds: float, poll: Callable[[], list[float]]
) -> tuple[float, float]:
    """Samples/s of a student that trains by waiting, and what it could have had meanwhile."""
    begin = due = time.monotonic()
    trained, could = 0, [min(demand, sum(poll()))]
    for batch in batches:
        if time.monotonic() > begin + len(could):  # once a second
            could.append(min(demand, sum(poll())))
        now = time.monotonic()
        if now > begin + seconds:
            break
        due = max(due + len(batch.ids) / demand, now)
        time.sleep(due - now)  # the step itself
        trained += len(batch.ids)
    return trained / (time.monotonic() - begin), mean(could)
