"""A teacher's process: its successive connections to the scheduler.

The model, its thread and the connections to readers outlive the connection to the scheduler:
when that breaks, requests are still answered, and the teacher reconnects as soon as a
scheduler listens at the same address, with the model still loaded.
"""

import asyncio
import logging
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from kdlab.cluster.child_configs import TeacherConfig
from kdlab.cluster.teachers.preemption import wait_for_notice
from kdlab.cluster.teachers.teacher import AGAIN_S, LONGEST_S, Ending, TeacherServer
from kdlab.cluster.transport import security
from kdlab.cluster.transport.roles import NO_SCHEDULER, TEACHER, TeacherWorker
from kdlab.cluster.transport.wire import CALL_S, configure_dask
from kdlab.supervision.backoff import Backoff
from kdlab.supervision.children import configured, lower_priority


async def serve(
    config: TeacherConfig, say: Callable[[str], None] = lambda line: None
) -> Ending:
    """Run one teacher until it is withdrawn, refused or loses its scheduler for good."""
    configure_dask()
    security.enable_tls(config.tls)
    logging.getLogger("distributed").setLevel(logging.WARNING)
    base = config.scratch
    if base is not None:
        Path(base).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kdlab-teacher-", dir=base) as scratch:
        teacher = TeacherServer(config, Path(scratch), say)
        loop = asyncio.get_running_loop()
        leaving: list[asyncio.Task[None]] = []
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(
                sign, lambda: leaving.append(asyncio.create_task(teacher.withdraw()))
            )
        watcher = asyncio.create_task(_leave_in_time(teacher, config.notice))
        try:
            return await _connections(config, teacher)
        finally:
            watcher.cancel()
            teacher.close()


async def _leave_in_time(teacher: TeacherServer, notice: str | None) -> None:
    """Withdraw the teacher before its machine is taken away, where there are notices."""
    if notice is None:
        return
    text = await wait_for_notice(notice, teacher.say)
    teacher.say(f"this machine will be taken away: {text}")
    await teacher.withdraw()


async def _connections(config: TeacherConfig, teacher: TeacherServer) -> Ending:
    """Connect again and again, after random pauses that grow."""
    scheduler, port = config.scheduler, config.port
    away_since, again = time.monotonic(), Backoff(AGAIN_S)
    while teacher.ending is None:
        if await _has_listeners(scheduler):
            worker = TeacherWorker(
                scheduler,
                nthreads=1,
                name=config.name,
                host=security.listen_address(config.host, port),
                dashboard=False,
                local_directory=str(teacher.scratch),
                memory_limit=0,
                resources={TEACHER: 1},
                plugins=(teacher,),
                death_timeout=CALL_S,
            )
            try:
                async with worker:
                    port = urlsplit(worker.address).port or 0  # of the next one, too
                    away_since = time.monotonic()
                    again.succeeded()
                    await worker.finished()
                    away_since = time.monotonic()
            except (OSError, TimeoutError, RuntimeError) as error:
                # Dask raises RuntimeError for any start that failed.
                teacher.say(f"no connection to {scheduler}: {error}")
                port = config.port  # another process may have taken the old one
        if _is_leaving(teacher):
            break
        away_s = time.monotonic() - away_since
        if config.patience_s is not None and away_s > config.patience_s:
            why = f"no answer at {scheduler} for {away_s:.0f} s"
            return Ending(NO_SCHEDULER, why)
        again.longest_s = LONGEST_S if away_s > 30 else 1.0
        await asyncio.sleep(again.wait_s() * random.uniform(0.5, 1.0))
    return teacher.ending or Ending()


def _is_leaving(teacher: TeacherServer) -> bool:
    return teacher.ending is not None or teacher.draining


async def _has_listeners(address: str) -> bool:
    """True where a connection can be opened, whatever answers there."""
    parts = urlsplit(address)
    try:
        opening = asyncio.open_connection(parts.hostname, parts.port)
        _, writer = await asyncio.wait_for(opening, CALL_S)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


if __name__ == "__main__":
    chosen = configured(TeacherConfig)
    lower_priority()  # of a local pool; `kdlab teacher` does not share its machine
    ended = asyncio.run(serve(chosen))
    if ended.code:
        sys.stderr.write(f"this teacher cannot serve: {ended.why}\n")
    raise SystemExit(ended.code)
