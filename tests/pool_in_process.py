"""A pool in one process: coordinator, teachers and reader in one event loop, without Dask.

All of it is kdlab's own code but what carries calls to the coordinator: here a call is a
call. Labels travel over real sockets on loopback. What only processes show (that they start,
that a kill closes their connections, exit codes) is for tests/cluster's other tests.
"""

import asyncio
import itertools
import os
import socket
import threading
from pathlib import Path

from kdlab.cluster.child_configs import TeacherConfig
from kdlab.cluster.coordination.coordinator import Coordinator
from kdlab.cluster.reader.pool_connection import PoolConnection
from kdlab.cluster.reader.ring import Ring
from kdlab.cluster.reader.student_reader import StudentReader
from kdlab.cluster.teachers.teacher import TeacherServer
from kdlab.cluster.transport.security import NoHttp
from kdlab.testing.emulated_teachers import EmulatedTeacher


class Scheduler(NoHttp):
    """A stand-in for Dask's scheduler: a table of operations."""

    def __init__(self):
        self.handlers = {}


class Remote:
    """Calls a scheduler as Dask's `rpc` does; `up` is False while it is away."""

    def __init__(self, scheduler):
        self.scheduler, self.up, self.calls = scheduler, True, []

    def __getattr__(self, operation):
        if self.up and operation not in self.scheduler.handlers:
            raise AttributeError(operation)  # Dask's word for it

        async def call(**arguments):
            self.calls.append(operation.removeprefix("kdlab_"))
            if not self.up:
                raise ConnectionError("nobody is there")
            reply = self.scheduler.handlers[operation](**arguments)
            return await reply if asyncio.iscoroutine(reply) else reply

        return call


class Connections:
    """A stand-in for Dask's ConnectionPool, with one scheduler."""

    open = 0

    def __init__(self, remote):
        self.remote = remote

    def __call__(self, address):
        return self.remote

    async def close(self):
        pass


class Connection:
    """A Dask worker, as far as a teacher asks for one."""

    def __init__(self, pool, address):
        self.pool, self.address, self.scheduler = pool, address, pool.remote
        self.handlers, self.closed = {}, False

    async def close(self):
        if not self.closed:
            self.closed = True
            self.pool.coordinator.remove_worker(self.pool.scheduler, self.address)


class PoolInProcess:
    """Satisfies `soft_labels.source.TeacherPool`; everything of it is in a thread's loop."""

    address, tls = "tcp://here:1", None

    def __init__(self, deployment, folder, **coordinator):
        self.deployment, self.folder = deployment, folder
        self.teacher = deployment.teacher
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.scheduler = Scheduler()
        self.remote = Remote(self.scheduler)
        self.coordinator = Coordinator(deployment=deployment.to_json(), **coordinator)
        self.teachers, self.emulated, self.readers, self.samples = [], [], [], {}
        self._addresses = itertools.count(1)
        self.run(self.coordinator.start(self.scheduler))

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(300)

    def call(self, function, *arguments):
        async def once():
            return function(*arguments)

        return self.run(once())

    def status(self):
        return self.call(self.coordinator.pool_status)

    # Teachers

    def add_teacher(self, name=None, **options):
        """A teacher that has come up, or has ended, when this returns."""
        number = next(self._addresses)
        config = TeacherConfig(
            scheduler=self.address,
            name=name or f"teacher-{number - 1}",
            host="127.0.0.1",
            threads=1,
            device="cpu",
            tls=None,
            **options,
        )
        scratch = self.folder / config.name
        scratch.mkdir(parents=True)
        lines = []
        server = TeacherServer(config, scratch, lines.append)
        server.lines, server.address = lines, f"tcp://127.0.0.1:{number}"
        self.teachers.append(server)
        self.run(self._up(server))
        return server

    async def _up(self, server):
        await server.setup(Connection(self, server.address))
        await server.serving

    def add_emulated(self, number, rate, config):
        """A teacher that only takes its time."""
        teacher = EmulatedTeacher(number, rate, config)
        self.emulated.append(teacher)
        self.run(
            teacher.setup(Connection(self, f"tcp://127.0.0.1:{next(self._addresses)}"))
        )

    def spawn(self, work):
        """Start work in the loop's thread."""
        return self.loop.create_task(work)

    def kill(self, server):
        """Break a teacher's connections; Dask sees it at once."""

        async def gone():
            worker, server.worker, server.ready = server.worker, None, False
            server.close()
            if server.serving is not None:
                server.serving.cancel()
            for reader in self.readers:
                asker = reader.reader.wires._clients.get(server.address)
                if asker is not None and asker.done():
                    asker.result().transport.abort()
            await worker.close()

        self.run(gone())

    def silent(self, server, *, seconds=1e9):
        """Let nothing leave a teacher, as if it hung, and have its lease run out."""
        self.run(server.partition(seconds))

        def late():
            self.coordinator.leases.leases[server.address].renewed_at -= 1e6
            self.coordinator.tick()

        self.call(late)

    def restart_coordinator(self, **options):
        """Start another one at the same address, which knows only what its store has."""

        async def swap():
            await self.coordinator.close()
            self.scheduler.handlers.clear()
            self.coordinator = Coordinator(**options)
            await self.coordinator.start(self.scheduler)

        self.run(swap())

    # The reader

    def wires(self, config):
        return PoolConnection(Connections(self.remote), config)

    def start_reader(self, module, config, log, *, fds):
        """Stands for `Child`: the reader's work, in this process."""
        assert module == "kdlab.cluster.reader.student_reader"
        reader = ReaderInProcess(self, config, log)
        self.readers.append(reader)
        return reader

    def close(self):
        async def end():
            for server in (*self.teachers, *self.emulated):
                server.close()
            await self.coordinator.close()
            # Again and again: `asyncio.wait_for` may lose one when its call ends just then.
            while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=0.05)

        self.run(end())
        for server in self.teachers:
            if server.thread is not None:
                server.thread.join()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class ReaderInProcess:
    """A reader that is no process; `kill` ends it without a word."""

    pids = itertools.count(7000)

    def __init__(self, pool, config, log):
        self.pool, self.config, self.log = pool, config, Path(log)
        self.pid = next(self.pids)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        # Descriptors of its own, as a child has them.
        self.ring = Ring(config.layout, os.dup(config.ring_fd))
        end = socket.socket(fileno=os.dup(config.socket_fd))
        end.setblocking(False)
        self.end = end
        self.reader = StudentReader(config, pool.samples[config.student], self.ring)
        self.work = asyncio.run_coroutine_threadsafe(self._run(end), pool.loop)

    async def _run(self, end):
        try:
            await self.reader.run(end)
        finally:
            self.reader.writer.transport.abort()

    def alive(self):
        return not self.work.done()

    def kill(self):
        def gone():
            for task in list(self.reader.background):
                task.cancel()
            self.reader.writer.transport.abort()

        self.work.cancel()
        self.pool.call(gone)

    def exit_report(self, what):
        return f"the reader {what}"

    def stop(self, timeout_s=5.0):
        if self.alive():
            self.kill()
