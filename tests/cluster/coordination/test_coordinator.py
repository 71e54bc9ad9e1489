"""The coordinator's operations, called as Dask calls them, on a clock that the test moves."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from pool_in_process import Scheduler
from pool_status import facts

from kdlab.cluster.coordination.coordinator import STUDENT_SILENT_S, Coordinator
from kdlab.cluster.coordination.coordinator_messages import (
    Deployed,
    PoolStatus,
    PoolUpdate,
)
from kdlab.cluster.coordinator import dask_setup
from kdlab.codec import from_builtins, to_builtins, to_dict
from kdlab.papers.edl_dist.reader_instructions import (
    AskTeacher,
    Need,
    Release,
    ReturnTeacher,
)
from kdlab.testing.scripted import FakeClock

SERVED = to_builtins(Deployed(fingerprint="f", num_classes=10, batch=8))


class Case:
    """A coordinator in a scripted scheduler."""

    def __init__(self, **options):
        self.clock, self.options = FakeClock(1000.0), options
        self.scheduler = Scheduler()

    def run(self, act):
        """Run `act` within an event loop, which a coordinator needs."""

        async def live():
            self.plugin = Coordinator(**{"deployment": SERVED} | self.options)
            await self.plugin.start(self.scheduler)
            self.plugin.ticker.stop()  # the test says when it looks
            try:
                return await act(self)
            finally:
                await self.plugin.close()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "kdlab.cluster.coordination.coordinator.time.monotonic", self.clock
            )
            return asyncio.run(live())

    async def call(self, operation, *args, **arguments):
        answer = self.scheduler.handlers[f"kdlab_{operation}"](*args, **arguments)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def join(self, address, t_t=100.0, batch_s=0.1, answer=(), **details):
        await self.call("hello", address)
        about = to_dict(facts(name=address.removeprefix("tcp://"), **details))
        return await self.call("ready", address, "f", t_t, batch_s, answer, about)

    async def changes(self, student, after=None):
        version, incarnation = (after.version, after.incarnation) if after else (-1, "")
        update = await self.call("watch", student, version, incarnation, 0.0)
        return from_builtins(PoolUpdate, update) if update else None

    def states(self):
        return {t.address: t.state for t in self.plugin.pool_status().teachers}

    async def tell(self, student, instruction):
        return await self.call("tell", student, to_builtins(instruction))

    def look(self, seconds=0.0):
        self.clock.advance(seconds)
        self.plugin.tick()


@pytest.fixture
def case():
    return Case()


def held(changes):
    return {lease.teacher: lease.epoch for lease in changes.held}


def test_every_operation_that_others_call_is_there(case):
    async def act(case):
        return set(case.scheduler.handlers)

    assert case.run(act) == {
        f"kdlab_{name}"
        for name in (
            *("deploy", "hello", "ready", "renew", "leave", "weights_source", "weights"),
            *("weights_put", "demand", "tell", "watch", "student_gone", "status"),
        )
    }
    assert case.scheduler.kdlab_coordinator is case.plugin


def test_a_teacher_registers_loads_and_is_given_to_who_searches(case):
    async def act(case):
        welcome = await case.call("hello", "tcp://a")
        assert welcome == {"deployment": SERVED, "renew_s": 1.5}  # a quarter of the TTL
        assert case.states() == {"tcp://a": "registered"}
        await case.call("demand", "s", 50.0, None)
        assert (await case.changes("s")).held == ()  # nobody's before it is ready
        assert await case.join("tcp://a") == {}
        (lease,) = (await case.changes("s")).held
        assert (lease.teacher, lease.t_t) == ("tcp://a", 100.0)
        assert lease.info == facts(name="a")
        assert case.states() == {"tcp://a": "assigned"}

    case.run(act)


def test_without_a_deployment_a_teacher_waits_and_asks_again():
    async def act(case):
        assert await case.call("hello", "tcp://a", wait_s=0.0) is None
        waiting = asyncio.ensure_future(case.call("hello", "tcp://a", wait_s=60.0))
        await asyncio.sleep(0)
        assert await case.call("deploy", SERVED) == ""
        assert (await waiting)["deployment"] == SERVED

    Case(deployment=None).run(act)


@pytest.mark.parametrize(
    ("ready", "why", "load"),
    [
        (("g", 100.0, 0.1, []), "it serves model g, this pool serves f", True),
        (("f", float("nan"), 0.1, []), "it measured nan samples/s", False),
        (("f", 0.0, 0.1, []), "it measured 0.0 samples/s", False),
        (("f", 100.0, float("inf"), []), "it measured 100.0 samples/s", False),
    ],
)
def test_who_is_refused_hears_why(case, ready, why, load):
    async def act(case):
        await case.call("hello", "tcp://a")
        answer = await case.call("ready", "tcp://a", *ready, to_dict(facts()))
        assert answer["refused"] == why
        assert answer["load"] is load
        assert "free" not in case.states().values()

    case.run(act)


def test_the_proof_of_another_model_is_refused_and_its_row_removed():
    async def act(case):
        refusal = await case.join("tcp://a", answer=[[1.0, 2.0]])
        assert "differs by" in refusal["refused"]
        assert refusal["retry_s"] is None  # never again
        assert case.states() == {}
        assert await case.join("tcp://b", answer=[[3.0, 4.0]]) == {}

    Case(deployment={**SERVED, "reference": [[3.0, 4.0]]}).run(act)


def test_a_pool_in_use_serves_nothing_else(case):
    other_model = {**SERVED, "fingerprint": "g"}

    async def act(case):
        await case.join("tcp://a")
        await case.call("demand", "s", 50.0, None)
        assert "still serves s with another model" in await case.call("deploy", other_model)
        assert await case.call("deploy", SERVED) == ""  # the same model changes nothing
        assert case.states() == {"tcp://a": "assigned"}
        await case.call("student_gone", "s")
        assert await case.call("deploy", other_model) == ""
        assert case.states() == {}  # each registers again, and loads that
        assert await case.call("renew", "tcp://a", 100.0, {"answered": 0}) is False
        assert (await case.call("hello", "tcp://a"))["deployment"] == other_model

    case.run(act)


def test_pixels_are_not_enough_for_who_sends_ids(case):
    async def act(case):
        refusal = await case.call("deploy", {**SERVED, "by_reference": True})
        assert "set soft_labels.inputs=value_uint8" in refusal

    case.run(act)


def test_silence_beyond_the_lease_expires_and_a_renewal_prolongs_it(case):
    async def act(case):
        await case.join("tcp://a")
        await case.join("tcp://b")
        await case.call("demand", "s", 200.0, None)
        before = await case.changes("s")
        assert set(held(before)) == {"tcp://a", "tcp://b"}
        case.look(5.0)
        assert await case.call("renew", "tcp://b", 100.0, {"answered": 3}) is True
        case.look(2.0)
        assert case.states() == {"tcp://b": "assigned"}
        after = await case.changes("s", before)
        assert after.gone == {"tcp://a": "expired"}
        assert not after.full
        status = case.plugin.pool_status()
        assert (status.expired, status.renewals) == (1, 1)
        assert status.teachers[0].facts.answered == 3

    case.run(act)


def test_a_slow_machine_has_a_longer_lease(case):
    """It renews between batches: one that takes 3 s must not look like a hang."""

    async def act(case):
        await case.join("tcp://a", t_t=3.0, batch_s=3.0)
        case.look(11.0)
        assert case.states() == {"tcp://a": "free"}
        case.look(2.0)
        assert case.states() == {}

    case.run(act)


def test_a_broken_connection_is_a_loss_at_once(case):
    async def act(case):
        await case.join("tcp://a")
        await case.call("demand", "s", 50.0, None)
        before = await case.changes("s")
        case.plugin.remove_worker(case.scheduler, "tcp://a")
        assert (await case.changes("s", before)).gone == {"tcp://a": "lost"}
        case.plugin.remove_worker(case.scheduler, "tcp://nobody")  # another of Dask's

    case.run(act)


def test_one_that_leaves_drains_and_its_student_gets_another(case):
    async def act(case):
        await case.join("tcp://a")
        await case.call("demand", "s", 50.0, None)
        before = await case.changes("s")
        await case.join("tcp://b")
        await case.call("leave", "tcp://a")
        after = await case.changes("s", before)
        assert after.gone == {"tcp://a": "draining"} or "tcp://b" in held(after)
        assert case.states() == {"tcp://a": "draining", "tcp://b": "assigned"}

    case.run(act)


def test_a_spare_that_is_lost_is_no_news(case):
    """Case 1 of the paper."""

    async def act(case):
        await case.join("tcp://a")
        await case.join("tcp://b")
        await case.call("demand", "s", 50.0, 1)
        before = await case.changes("s")
        (mine,) = held(before)
        (spare,) = {"tcp://a", "tcp://b"} - {mine}
        case.plugin.remove_worker(case.scheduler, spare)
        after = await case.changes("s", before)
        assert (after.gone, after.held) == ({}, ())

    case.run(act)


def test_another_rate_or_engine_is_news_and_the_same_is_none(case):
    async def act(case):
        await case.join("tcp://a")
        await case.call("demand", "s", 50.0, None)
        news = {"answered": 1}
        first = await case.changes("s")
        await case.call("renew", "tcp://a", 105.0, news)
        assert case.plugin.pool_status().teachers[0].t_t == 100.0  # within a tenth
        await case.call("renew", "tcp://a", 150.0, news)
        assert case.plugin.pool_status().teachers[0].t_t == 150.0
        await case.call("renew", "tcp://a", float("nan"), news)
        assert case.plugin.pool_status().teachers[0].t_t == 150.0  # is not believed
        await case.call("renew", "tcp://a", 150.0, {**news, "engine": "folded fp32"})
        later = await case.changes("s", first)
        assert [lease.info.engine for lease in later.held] == ["folded fp32"]
        await case.call("renew", "tcp://a", 150.0, {**news, "here": 7.0})
        assert case.plugin.leases.leases["tcp://a"].info.here == 0.0  # no share at all

    case.run(act)


def test_a_student_that_falls_silent_loses_its_teachers(case):
    async def act(case):
        await case.join("tcp://a")
        await case.call("demand", "s", 50.0, None)
        await case.changes("s")
        await case.call("renew", "tcp://a", 100.0, {"answered": 0})
        for _ in range(4):
            case.clock.advance(STUDENT_SILENT_S / 4)
            await case.call("renew", "tcp://a", 100.0, {"answered": 0})
        case.look()
        assert case.states() == {"tcp://a": "assigned"}
        case.look(0.1)
        assert case.states() == {"tcp://a": "free"}
        assert (await case.changes("s")) is None  # it announces itself again

    case.run(act)


def test_teachers_are_released_given_back_and_asked_for(case):
    async def act(case):
        for name in "abc":
            await case.join(f"tcp://{name}")
        await case.call("demand", "s", 50.0, None)
        first = await case.changes("s")
        ((mine, lease),) = held(first).items()
        await case.tell("s", Need(40.0))
        assert case.plugin.leases.demands["s"].need == 40.0
        assert await case.tell("s", AskTeacher(120.0)) is True
        assert len(held(await case.changes("s"))) == 2
        await case.tell("s", Release(mine, lease - 1, 50.0))
        assert case.states()[mine] == "assigned"  # of another lease
        await case.tell("s", Release(mine, lease, 50.0))
        assert case.states()[mine] == "free"
        ((teacher, its_lease),) = held(await case.changes("s")).items()
        await case.tell("s", ReturnTeacher(teacher, its_lease, 0.0))
        anew = held(await case.changes("s"))
        assert its_lease not in anew.values()  # whoever it is, under a new lease
        assert await case.tell("nobody", AskTeacher(1.0)) is False

    case.run(act)


def test_two_students_share_and_the_first_is_told_what_moved(case):
    async def act(case):
        for name in "ab":
            await case.join(f"tcp://{name}")
        await case.call("demand", "first", 1e9, None)
        before = await case.changes("first")
        assert len(held(before)) == 2
        await case.call("demand", "second", 1e9, None)
        after = await case.changes("first", before)
        assert list(after.gone.values()) == ["moved"]
        assert set(held(await case.changes("second"))) == set(after.gone)

    case.run(act)


def test_what_a_student_says_is_not_believed_blindly(case):
    async def act(case):
        await case.join("tcp://a")
        await case.call("demand", "s", float("inf"), None)
        assert case.plugin.pool_status().students["s"].t_s == 0.0
        figures = {"labels": 5.0, "volume": float("nan"), "unheard_of": 1.0}
        await case.call("watch", "s", -1, "", 0.0, figures)
        assert case.plugin.pool_status().students["s"].figures == {
            "labels": 5.0,
            "volume": 0.0,
        }

    case.run(act)


def test_a_new_coordinator_takes_what_a_loaded_teacher_serves():
    async def act(case):
        await case.call("hello", "tcp://a", serves=SERVED)
        assert case.plugin.pool_status().deployed == "f"
        other_model = {**SERVED, "fingerprint": "g"}
        await case.call("hello", "tcp://b", serves=other_model)  # the pool serves f by now
        assert case.plugin.pool_status().deployed == "f"

    Case(deployment=None).run(act)


def test_leases_that_were_kept_come_back_with_their_owners(tmp_path):
    store = {"store_url": str(tmp_path / "leases.json")}

    async def before(case):
        await case.join("tcp://a")
        await case.call("demand", "s", 50.0, None, 2.0, 0)
        return held(await case.changes("s"))

    async def after(case):
        assert case.plugin.pool_status().deployed == "f"
        assert case.plugin.leases.demands["s"].priority == 2.0
        return held(await case.changes("s"))

    first = Case(**store).run(before)
    assert first == Case(deployment=None, **store).run(after)
    assert list(first) == ["tcp://a"]


def test_all_that_it_decides_is_written_down(tmp_path):
    journal = tmp_path / "coordinator.jsonl"

    async def act(case):
        await case.join("tcp://a")
        await case.call("renew", "tcp://a", 100.0, {"answered": 0})

    Case(journal=str(journal)).run(act)
    on = [json.loads(line).get("on") for line in journal.read_text().splitlines()]
    assert on == [None, "on_registered", "on_ready"]  # renewals decide nothing


def test_a_second_coordinator_takes_the_place_of_the_first(case):
    async def act(case):
        second = Coordinator(deployment={**SERVED, "fingerprint": "g"})
        await second.start(case.scheduler)
        assert (await case.call("status"))["deployed"] == "g"
        assert case.scheduler.kdlab_coordinator is second
        await second.start(case.scheduler)  # Dask starts again what a preload has started
        await second.close()

    case.run(act)


def test_a_plain_scheduler_becomes_one_by_its_preload():
    async def act():
        scheduler, plugins = Scheduler(), []
        scheduler.add_plugin = plugins.append
        await dask_setup(scheduler)
        (plugin,) = plugins
        assert scheduler.kdlab_coordinator is plugin
        assert "kdlab_hello" in scheduler.handlers
        await plugin.close()

    asyncio.run(act())


def test_where_pages_are_shown_its_numbers_are_on_them_until_it_closes():
    """A user's own scheduler has a metrics page; the scheduler of a pool has none."""
    prometheus = pytest.importorskip("prometheus_client")

    async def act(case):
        await case.join("tcp://a", answered=4)
        await case.call("demand", "s", 50.0, None)
        await case.call("watch", "s", -1, "", 0.0, {"labels": 20.0, "computed_s": 1.5})
        of = {"teacher": "a", "student": "s"}
        return {
            "assigned": number("kdlab_teachers", {"state": "assigned"}),
            "rate": number("kdlab_teacher_samples_per_second", of),
            "answered": number("kdlab_teacher_answered_requests_total", of),
            "needs": number("kdlab_student_needs_samples_per_second", {"student": "s"}),
            "labels": number("kdlab_student_labels_total", {"student": "s"}),
            "computed": number(
                "kdlab_student_answers_computed_seconds_total", {"student": "s"}
            ),
            "expired": number("kdlab_leases_expired_total", {}),
        }

    def number(name, labels):
        return prometheus.REGISTRY.get_sample_value(name, labels)

    case = Case()
    case.scheduler = SimpleNamespace(handlers={})  # one with pages
    assert case.run(act) == {
        "assigned": 1, "rate": 100.0, "answered": 4, "needs": 50.0, "labels": 20.0,
        "computed": 1.5, "expired": 0,
    }  # fmt: skip
    assert number("kdlab_leases_expired_total", {}) is None
    assert not hasattr(Case().run(_metrics), "collect")


async def _metrics(case):
    return case.plugin.metrics


def test_facts_of_a_teacher_are_what_others_see(case):
    async def act(case):
        await case.join("tcp://a", weights=("ab",), engine="eager fp32")
        status = from_builtins(PoolStatus, await case.call("status"))
        to_dict = facts(name="a", weights=("ab",), engine="eager fp32")
        assert [t.facts for t in status.teachers] == [to_dict]
        (row,) = (teacher.to_json() for teacher in status.teachers)
        assert row["engine"] == "eager fp32"
        assert "answered" not in row  # what it did not tell is left out

    case.run(act)
