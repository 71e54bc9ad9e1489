"""Ranks of a group as threads of the test's process: what they say to each other is real.

Each thread has its own default process group, so that gloo carries what it carries between
processes, over loopback. What a rank computes, agrees on, saves and goes on
from is the same; what its process has beside that (signals, pipes, a clock of the processor)
is tested with real ones.

    results = in_threads(2, lambda rank: ...)     # of each rank, in their order
    with runs_with_ranks(): ...                 # whole runs, and their ranks, in this process
"""

import gc
import importlib
import itertools
import os
import queue
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from runs_here import RunsHere
from torch.distributed import distributed_c10d

from kdlab.experiment import groups, rank_process
from kdlab.experiment.folder import RunFolder
from kdlab.methods.blockwise import rank
from kdlab.models.model import ModelSpec
from kdlab.run.handle import run as handle
from kdlab.supervision.heartbeat import Heartbeat
from kdlab.supervision.rank_messages import CarryOut, RankOrder, SaveGeneration

_PATIENCE = timedelta(seconds=60)  # of a rank whose neighbour failed without a word


class _OfThread(threading.local):
    """State that torch.distributed has for a process (`distributed_c10d._World`)."""

    def __init__(self):
        self.default_pg = None
        self.group_count = 0
        self.pg_map, self.pg_names, self.pg_group_ranks = {}, {}, {}
        self.pg_backend_config, self.pg_coalesce_state = {}, {}
        self.tags_to_pg, self.pg_to_tag = {}, {}
        self.comms = []


@contextmanager
def worlds_of_threads():
    """Each thread is a process to torch.distributed."""
    before, distributed_c10d._world = distributed_c10d._world, _OfThread()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    try:
        yield
    finally:
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        distributed_c10d._world = before


def in_threads(world, work):
    """Return `work(rank)` of each rank of a default group of so many.

    The first error that is not of a neighbour's is raised.
    """
    store, results, failed = dist.HashStore(), {}, {}

    def live(rank):
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=world, timeout=_PATIENCE
        )
        try:
            results[rank] = work(rank)
        except BaseException as error:
            failed[rank] = error
        finally:
            dist.destroy_process_group()

    with worlds_of_threads():
        threads = [threading.Thread(target=live, args=(r,)) for r in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for error in sorted(failed.values(), key=lambda e: "gloo" in str(e)):
        raise error
    return [results[rank] for rank in range(world)]


class Killed(BaseException):
    """Ends a rank as SIGKILL does: nothing in it catches this."""


def _close_connections():
    """Close connections from this process to itself: those of its ranks to each other."""
    every = [c for c in psutil.Process().net_connections("tcp") if c.raddr]
    ends = {c.laddr for c in every}
    for connection in every:
        if connection.raddr in ends:
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as link:
                link.shutdown(socket.SHUT_RDWR)


class ThreadedRank:
    """A `RankChild` whose rank lives in a thread; `kill` takes effect at its next sign of life."""

    _pids = itertools.count(4_000_000)  # of nobody
    machine = "here"

    def __init__(self, kind, config, group):
        self.name, self.pid = config.name, next(self._pids)
        self.exit_code, self.stopped = None, False
        # generation, number: the newest that it was of, and its rank there
        self.generation = self.number = None
        self.killed = threading.Event()
        self._says, self._orders = queue.SimpleQueue(), queue.SimpleQueue()
        self._sign, self._group = Heartbeat(0, 0, 0.0), group
        self.rank = kind(RunFolder(Path(config.run)), config.member, self._beat)
        self.thread = threading.Thread(target=self._live, daemon=True)
        self.thread.start()

    def _beat(self, generation, step):
        self._sign = Heartbeat(generation, step, time.monotonic())
        self._group.on_beat(self, generation, step)
        if self.killed.is_set():
            _close_connections()
            raise Killed

    def _live(self):
        code = 0
        try:
            rank_process.serve(self.rank, self._orders, self._say, self._end)
        except Killed:
            code = -9
        except SystemExit as error:  # where a process would have ended itself
            code = error.code
        gc.collect()  # what it was in the middle of: its connections close with that
        self.exit_code = code

    def _say(self, **message):
        self._says.put(message)

    def _end(self, code):
        _close_connections()
        sys.exit(code)

    def leave(self):
        """Leave as after SIGTERM: all save first."""
        self.rank.leaving = True

    # As `RankChild` wants it

    def messages(self):
        return [self._says.get() for _ in range(self._says.qsize())]

    def send(self, **order):
        if "end" in order:
            self._orders.put(None)
            return self.alive()
        match RankOrder.from_builtins(order):
            case CarryOut(assignment):
                self.number, self.generation = assignment["rank"], assignment["generation"]
                self._orders.put(assignment)
            case SaveGeneration():
                self.rank.saving = True
            case _:
                self.rank.stopping = True
        return self.alive()

    def alive(self):
        return self.exit_code is None or not self._says.empty()  # its last words are heard

    def sign(self):
        return self._sign

    def is_stopped(self):
        return self.stopped

    def kill(self):
        self.killed.set()

    def exit_report(self, what):
        return f"{self.name} {what} (exit code {self.exit_code})"

    def stop(self, timeout_s=5.0):
        self._orders.put(None)
        self.thread.join(0.0 if self.killed.is_set() else timeout_s)
        self.kill()


class _OwnChances(threading.local):
    seed = 0


class RanksHere:
    """Stands where `kdlab.experiment.groups.start_local_rank` does, while a fixture lasts.

    `on_beat(child, generation, step)` is called in the thread of a rank at each of its signs of
    life; it may kill a child, have it leave, or raise what its machine would.
    """

    def __init__(self, monkeypatch):
        self.children = []
        self.on_beat = lambda child, generation, step: None
        monkeypatch.setattr(groups, "start_local_rank", self)
        _draw_as_processes_do(monkeypatch)

    def of_generation(self, generation):
        """Its ranks, in order."""
        ranks = [c for c in self.children if c.generation == generation]
        return sorted(ranks, key=lambda c: c.number)

    def __call__(self, module, config, log, pulse):
        members = vars(importlib.import_module(module)).values()
        (kind,) = (
            c
            for c in members
            if isinstance(c, type)
            and issubclass(c, rank_process.RankProcess)
            and c.__module__ == module
        )
        child = ThreadedRank(kind, config, self)
        self.children.append(child)
        return child


def _draw_as_processes_do(monkeypatch):
    """Weights that a thread draws are those of the seed it gave, whatever others draw.

    A thread that draws or seeds meanwhile is found out: what is built twice must agree.
    Networks are cut one at a time: torch.fx traces in one thread only.
    """
    chances, lock = _OwnChances(), threading.RLock()
    seed, build, cut = torch.manual_seed, ModelSpec.build, rank.cutting_of

    def seeded(number):
        chances.seed = number
        with lock:
            return seed(number)

    def built(self, *arguments, **how):
        with lock:
            before = None
            while True:
                seed(chances.seed)
                model = build(self, *arguments, **how)
                if before is not None and _alike(before, model):
                    return model
                before = model

    def cutting_of(*arguments, **how):
        with lock:
            return cut(*arguments, **how)

    monkeypatch.setattr(torch, "manual_seed", seeded)
    monkeypatch.setattr(rank, "cutting_of", cutting_of)
    monkeypatch.setattr(ModelSpec, "build", built)


def _alike(first, second):
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@contextmanager
def runs_with_ranks():
    """(`RunsHere`, `RanksHere`): runs that are done within this process, with their ranks."""
    with pytest.MonkeyPatch.context() as patch, worlds_of_threads():
        runs = RunsHere(patch)
        patch.setattr(handle, "spawn", runs)
        yield runs, RanksHere(patch)
