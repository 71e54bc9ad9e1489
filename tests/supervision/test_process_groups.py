"""Ranks know each other: a stranger who comes first is found before anything goes through."""

import itertools
import socket
import struct
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from math import inf

import psutil
import pytest
import torch
import torch.distributed as dist
from threaded_ranks import in_threads, worlds_of_threads
from torch.distributed import distributed_c10d

from kdlab.codec import MessageError, to_msgpack
from kdlab.supervision import process_groups
from kdlab.supervision.process_groups import (
    UnauthenticatedPeer,
    begin,
    from_all,
    from_first,
    new_group,
)

PATIENCE = timedelta(minutes=10)  # of a collective: nobody who meets waits for so long


@dataclass(frozen=True)
class Fact:
    name: str
    sizes: dict[int, float]


def began(world, work, secret=lambda rank: b"of all"):
    """Begin a group in threads; return the result of `work(rank)`, or the error, of each."""
    store, outcomes = dist.HashStore(), {}

    def live(rank):
        try:
            begin(store, "gloo", rank, world, secret(rank), PATIENCE)
            outcomes[rank] = work(rank)
        except Exception as error:
            outcomes[rank] = error
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    with worlds_of_threads():
        threads = [threading.Thread(target=live, args=(r,)) for r in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [outcomes[rank] for rank in range(world)]


def test_what_each_has_and_what_the_first_has():
    def rank(number):
        fact = Fact("x" * 10**number, {number: inf})
        return from_all(fact, Fact), from_first([number], list[int])

    every, first = in_threads(3, rank)[2]
    assert every == [Fact("x" * 10**r, {r: inf}) for r in range(3)]
    assert first == [0]


def test_what_is_none_of_that_kind_is_refused():
    def rank(number):
        with pytest.raises(MessageError, match="Expected `int`, got `str`"):
            from_all("x", int)
        return True

    assert in_threads(2, rank) == [True] * 2


def test_no_pickle_is_opened(tmp_path):
    """It is a text of bytes here, and no more."""
    code = b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR."

    def rank(number):
        assert from_all(code, bytes) == [code] * 2
        with pytest.raises(MessageError):
            process_groups.from_msgpack(Fact, code)
        return True

    assert in_threads(2, rank) == [True] * 2
    assert not (tmp_path / "ran").exists()
    assert to_msgpack(code) != code


def test_ranks_that_know_the_secret_meet():
    def rank(number):
        pair = new_group((0, 2))
        assert (pair is None) == (number == 1)
        rows = torch.ones(1)
        dist.all_reduce(rows)
        return rows.item()

    assert began(3, rank) == [3.0] * 3


def test_who_does_not_know_it_takes_part_in_nothing(monkeypatch):
    monkeypatch.setattr(process_groups, "_TRIES", 2)
    errors = began(2, lambda rank: "met", secret=lambda rank: b"%d" % rank)
    assert [type(error) for error in errors] == [UnauthenticatedPeer] * 2
    assert "a ProcessGroup 2 times" in str(errors[0])


def test_what_others_write_into_the_store_overrules_nobody(monkeypatch):
    """A store between machines asks nobody: somebody else said that all was well."""
    monkeypatch.setattr(process_groups, "_TRIES", 2)
    monkeypatch.setattr(process_groups, "_all_answers", lambda *about: {"yes"})
    errors = began(2, lambda rank: "met", secret=lambda rank: b"%d" % rank)
    assert [type(error) for error in errors] == [UnauthenticatedPeer] * 2


@pytest.mark.parametrize("what", ["init_process_group", "new_group"])
def test_a_rank_whose_peer_has_failed_does_not_wait_for_it(monkeypatch, what):
    """One failed at once where a stranger hung up, the other stood there until it was killed."""
    monkeypatch.setattr(process_groups, "_MEET_S", 1.0)
    really, tried = getattr(dist, what), []

    def fails_once(*about, **more):
        caller = more["rank"] if "rank" in more else dist.get_rank()
        tried.append(caller)
        if caller == 1 and tried.count(1) == 1:
            distributed_c10d._world.group_count += 1  # it had a name
            raise RuntimeError("Connection closed by peer")
        return really(*about, **more)

    def work(rank):
        if what == "new_group":
            monkeypatch.setattr(dist, what, fails_once)
            dist.barrier()
            assert new_group() is not None
        return from_all(rank, int)

    if what == "init_process_group":
        monkeypatch.setattr(dist, what, fails_once)
    assert began(2, work) == [[0, 1]] * 2
    assert sorted(tried) == [0, 0, 1, 1]


def test_who_has_met_may_wait_for_longer(monkeypatch):
    """A collective has the patience of its group, and not that of its meeting."""
    monkeypatch.setattr(process_groups, "_MEET_S", 1.0)

    def work(rank):
        pair = new_group()
        if rank:  # later than a meeting may last
            threading.Event().wait(2 * process_groups._MEET_S)
        for group in (None, pair):
            dist.all_reduce(torch.ones(1), group=group)
        return "met"

    assert began(2, work) == ["met"] * 2


def listening():
    every = psutil.Process().net_connections("tcp")
    return {c.laddr.port for c in every if c.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("what", ["init_process_group", "new_group"])
@pytest.mark.parametrize("words", [b"", bytes(64), b"\xff" * 64, None])
def test_a_stranger_who_comes_first_is_found_and_the_group_made_anew(
    monkeypatch, what, words
):
    """Gloo takes whoever writes the peer's number first for that peer.

    Which of two ranks calls the other is chance: until it is the one that came late.
    """
    monkeypatch.setattr(process_groups, "_PROOF_S", 0.5)
    monkeypatch.setattr(process_groups, "_MEET_S", 3.0)
    really, held, callers = getattr(dist, what), ExitStack(), []

    def once():
        before, ready = set[int](), threading.Event()
        callers.clear()

        def steals():
            while not (new := listening() - before):
                continue
            for port, number in itertools.product(new, range(4)):
                wire = held.enter_context(socket.create_connection(("127.0.0.1", port)))
                wire.sendall(struct.pack("<q", number) + (words or b""))
                if words is None:  # it hangs up
                    wire.close()
            ready.set()

        def late(*about, **more):
            caller = more["rank"] if "rank" in more else dist.get_rank()
            callers.append(caller)
            assert caller == 0 or ready.wait(PATIENCE.total_seconds())
            return really(*about, **more)

        thief = threading.Thread(target=steals)

        def begin_thief():
            before.update(listening())
            monkeypatch.setattr(dist, what, late)
            thief.start()

        def work(rank):
            if what == "new_group":
                if rank == 0:
                    begin_thief()
                dist.barrier()
                assert new_group() is not None
            return from_all(rank, int)

        if what == "init_process_group":
            begin_thief()
        outcomes = began(2, work)
        thief.join()
        monkeypatch.setattr(dist, what, really)
        assert outcomes == [[0, 1]] * 2
        return len(callers) > 2

    with held:
        assert any(once() for _ in range(50))
