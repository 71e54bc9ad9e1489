"""Ranks on workers of a Dask cluster: where they start, what is heard of them, who is lost.

Workers, their keepers and the run talk to each other as they do over Dask; only the
connections and the ranks' processes are a script.
"""

import asyncio
import pickle
from types import SimpleNamespace

import pytest
from scripted_children import Starts
from tests_support import until

from kdlab.cluster import hosted_ranks
from kdlab.cluster.hosted_ranks import DaskHosts, for_ranks
from kdlab.cluster.rank_host import RankHost, interface_of
from kdlab.cluster.transport.roles import RANK, TEACHER
from kdlab.errors import ClusterError
from kdlab.testing.scripted import FakeClock

A, B, C = (f"tcp://127.0.0.{n}:1" for n in (1, 2, 3))


def keeper(address=A):
    """(a keeper that has been set up, its worker, what it starts); within a loop."""
    starts = Starts()
    host, worker = RankHost(starts), SimpleNamespace(address=address, handlers={})
    host.setup(worker)
    host._watch.cancel()  # the test says when it looks
    return host, worker, starts


class Cluster:
    """Connections to scripted workers; those in `down` do not answer."""

    def __init__(self, *addresses):
        self.addresses, self.down, self.roles = list(addresses), set(), {}
        self.starts, self.handlers, self.keepers = {}, {}, []

    def keepers_on(self, address, tls):
        return list(self.addresses)

    async def connect(self, tls):
        for address in self.addresses:
            self.add(address)
        return self

    def add(self, address):
        host, worker, starts = keeper(address)
        self.keepers.append(host)
        self.starts[address], self.handlers[address] = starts, worker.handlers

    def __call__(self, address):
        return SimpleNamespace(
            identity=self.identity,
            **{
                name: self._call(address, name)
                for name in next(iter(self.handlers.values()))
            },
        )

    def _call(self, address, name):
        async def call(**arguments):
            if address in self.down:
                raise ConnectionError(f"no route to {address}")
            answer = self.handlers[address][name](**arguments)
            return await answer if asyncio.iscoroutine(answer) else answer

        return call

    async def identity(self):
        return {"workers": {w: {"resources": self.roles.get(w, {})} for w in self.handlers}}

    async def close(self):
        for host in self.keepers:
            host.teardown(None)


class Case:
    def __init__(self, folder, *addresses):
        self.cluster, self.clock, self.folder = Cluster(*addresses), FakeClock(50.0), folder
        self.hosts = DaskHosts(
            "tcp://scheduler:1",
            keepers=self.cluster.keepers_on,
            connect=self.cluster.connect,
            now=self.clock,
        )
        self.started = 0

    def start(self):
        self.started += 1
        log = self.folder / f"rank-{self.started}.log"
        pulse = self.folder / f"rank-{self.started}.pulse"
        return self.hosts.start("kdlab.somewhere", {"seed": 3}, log, pulse)

    def child(self, rank):
        (process,) = (
            child
            for child in self.cluster.starts[rank.worker].children
            if f"{child.log.stem}@{child.log.parent}" == rank.name
        )
        return process

    def lose(self, worker):
        """Let a worker be silent for longer than it may be."""
        self.cluster.down.add(worker)
        self.clock.advance(16.0)


@pytest.fixture
def case(tmp_path, monkeypatch):
    monkeypatch.setattr(hosted_ranks, "_ASK_S", 0.001)
    cases = []

    def make(*addresses):
        cases.append(Case(tmp_path, *addresses))
        return cases[-1]

    yield make
    for case in cases:
        case.hosts.close()


def test_each_worker_gets_as_many_ranks_as_the_others(case):
    run = case(A, B)
    ranks = [run.start() for _ in range(4)]
    assert [rank.worker for rank in ranks] == [A, B, A, B]
    assert [rank.machine for rank in ranks[:2]] == ["127.0.0.1", "127.0.0.2"]
    run.child(ranks[1]).die()
    until(lambda: not ranks[1].alive())
    assert run.start().worker == B


def test_it_is_started_there_with_what_it_needs(case, tmp_path):
    run = case(A)
    rank = run.start()
    child = run.child(rank)
    assert rank.pid == child.pid
    assert (child.module, child.config) == ("kdlab.somewhere", {"seed": 3})
    (pulse,), environment = child.options["rest"], child.options["environment"]
    assert (child.log, pulse) == (tmp_path / "rank-1.log", tmp_path / "rank-1.pulse")
    assert environment == {"GLOO_SOCKET_IFNAME": "lo"}


def test_what_it_says_and_its_signs_of_life_are_heard(case):
    run = case(A)
    rank = run.start()
    child = run.child(rank)
    child.beat(2, 9, 0.0)
    child.say(ready=True)
    child.say(loss=0.5)
    heard = []
    until(lambda: heard.extend(rank.messages()) or len(heard) == 2)
    assert heard == [{"ready": True}, {"loss": 0.5}]
    until(lambda: rank.sign().step == 9)
    assert rank.sign().generation == 2
    assert rank.alive()
    assert not rank.is_stopped()
    child.stopped = True
    until(rank.is_stopped)


def test_orders_arrive_and_one_to_a_rank_that_is_gone_does_not(case):
    run = case(A)
    rank = run.start()
    assert rank.send(stop=True) is True
    assert run.child(rank).orders == [{"stop": True}]
    run.child(rank).die()
    assert rank.send(stop=True) is False
    run.cluster.down.add(A)
    assert rank.send(stop=True) is False


def test_last_words_are_complete_when_it_is_seen_dead(case):
    run = case(A)
    rank = run.start()
    run.child(rank).say(failed="out of memory")
    run.child(rank).die(1)
    until(lambda: not rank.alive())
    assert rank.messages() == [{"failed": "out of memory"}]
    assert rank.exit_code == 1
    assert rank.exit_report("ended") == "it ended (exit code 1)"


def test_kill_and_stop_reach_its_process(case):
    run = case(A)
    killed, stopped = run.start(), run.start()
    killed.kill()
    assert run.child(killed).exit_code == -9
    stopped.stop()
    assert run.child(stopped).stops == 1
    assert stopped not in run.hosts._ranks
    killed.kill()  # once more: nothing happens


def test_a_worker_that_does_not_answer_is_lost_with_its_ranks_and_only_those(case):
    run = case(A, B)
    first, second = run.start(), run.start()
    until(lambda: len(run.hosts._heard) == 2)
    run.cluster.down.add(B)
    until(lambda: run.hosts.ask(B, "kdlab_rank_port") is None)
    assert second.alive()  # it may come back within a while
    run.lose(B)
    until(lambda: not second.alive())
    assert second.exit_code == -9
    assert f"The Dask worker at {B} does not answer" in second.exit_report("ended")
    assert first.alive()
    until(lambda: not run.hosts._is_lost(A))  # the clock was moved for all
    assert run.start().worker == A


def test_all_workers_lost_is_said(case):
    run = case(A)
    rank = run.start()
    until(lambda: run.hosts._heard)
    run.lose(A)
    until(lambda: not rank.alive())
    with pytest.raises(ClusterError, match="All workers of the Dask cluster are lost"):
        run.start()


def test_a_worker_that_cannot_start_one_leaves_it_to_the_next(case):
    run = case(A, B)

    def broken(child):
        raise OSError("no space left on device")

    until(lambda: run.cluster.starts)
    run.cluster.starts[A].then = broken
    assert run.start().worker == B


def test_why_none_could_be_started_is_quoted(case):
    run = case(A)

    def broken(child):
        raise OSError("no space left on device")

    until(lambda: run.cluster.starts)
    run.cluster.starts[A].then = broken
    with pytest.raises(ClusterError, match=r"no space left on device.*same path, writable"):
        run.start()


def test_a_keeper_that_knows_no_such_rank_has_lost_it(case):
    """Its worker was started again, or nobody asked for the rank for too long."""
    run = case(A)
    rank = run.start()
    (host,) = run.cluster.keepers
    host.ranks.clear()
    until(lambda: not rank.alive())
    assert "no longer has this rank" in rank.exit_report("ended")


def test_workers_that_join_later_get_ranks_too_but_teachers_never(case, monkeypatch):
    monkeypatch.setattr(hosted_ranks, "_NEW_S", 0.001)
    run = case(A)
    run.start()
    run.cluster.roles[C] = {TEACHER: 1}
    hosts = run.hosts

    async def join():
        for address in (B, C):
            run.cluster.add(address)

    hosts._run(join()).result(10)
    until(lambda: B in hosts.workers)
    assert run.start().worker == B
    assert C not in hosts.workers


def test_a_generation_meets_where_its_first_rank_is(case):
    run = case(A)
    host, port = run.hosts.rendezvous(run.start()).removeprefix("tcp://").split(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


def test_ranks_that_nobody_asks_for_are_ended_and_no_others(tmp_path):
    """Their run was killed; those of a run beside it go on."""

    async def live():
        host, _, starts = keeper()
        for name in ("forgotten", "wanted"):
            host.start(name, "m", {}, str(tmp_path / name), str(tmp_path / "pulse"))
        begun = host.asked["forgotten"]
        host.asked["wanted"] = begun + 9.0
        await host.end_forgotten(begun + 9.9)
        assert len(starts.alive) == 2
        await host.end_forgotten(begun + 10.1)
        assert list(host.ranks) == ["wanted"]
        assert [child.stops for child in starts.children] == [1, 0]
        await host.end_forgotten(begun + 10.2)  # it is ended once
        host.teardown(None)
        assert [child.stops for child in starts.children] == [1, 1]

    asyncio.run(live())


def test_asking_for_a_rank_keeps_it():
    async def live():
        host, _, _ = keeper()
        host.start("one", "m", {}, "/tmp/one.log", "/tmp/one.pulse")
        host.asked["one"] = 0.0
        news = host.news(["one", "another"])
        assert list(news) == ["one"]
        assert host.asked["one"] > 0.0
        host.teardown(None)

    asyncio.run(live())


def test_a_keeper_travels_to_the_workers():
    assert pickle.loads(pickle.dumps(RankHost())).name == RankHost.name


def test_gloo_is_told_the_interface_of_the_workers_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("127.0.0.77") == "lo"  # all of 127/8 is
    assert interface_of("203.0.113.9") is None


def test_teachers_never_get_ranks_and_named_workers_come_first():
    """The defect B4: elastic teachers were given ranks to train."""
    workers = {"a": {"resources": {}}, "b": {"resources": {TEACHER: 1}}, "c": {}}
    assert for_ranks(workers) == ["a", "c"]
    assert for_ranks(workers | {"d": {"resources": {RANK: 1}}}) == ["d"]
    assert for_ranks({"b": workers["b"]}) == []
