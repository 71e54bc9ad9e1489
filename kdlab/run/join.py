"""`kdlab teacher ADDRESS`: this machine becomes a teacher of a pool."""

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kdlab.errors import BadInput, TeacherRefused


def join(
    scheduler: str,
    *,
    model: str | None,
    name: str | None,
    threads: int | None,
    device: str,
    host: str | None,
    tls: dict[str, str] | None = None,
) -> int:
    """Serve until Ctrl-C or SIGTERM, which withdraws politely.

    `model` is a teacher card; its weights must be those the pool serves. None serves
    whatever the pool serves. `tls` holds the paths of ca, cert and key.

    Raises:
        SchedulerUnreachable: nobody answers at the address.
        TeacherRefused: the pool serves another model.
    """
    from kdlab.cluster.remote_pool import install
    from kdlab.cluster.teacher_server import serve

    install(scheduler, tls)
    options: dict[str, Any] = {
        "name": name or f"{socket.gethostname()}-{os.getpid()}",
        "threads": threads or os.cpu_count() or 1,
        "device": device,
        "host": host or own_host(scheduler),
        "tls": tls,
        "sha256": None if model is None else _weights_of(model),
    }
    print(
        f"teacher {options['name']} joins {scheduler}; Ctrl-C withdraws it",
        file=sys.stderr,
    )

    def say(line: str) -> None:
        print(f"{options['name']}: {line}", file=sys.stderr, flush=True)

    refusal = asyncio.run(serve(scheduler, options, say))
    if refusal:
        raise TeacherRefused(f"This teacher cannot serve at {scheduler}: {refusal}")
    return 0


def certificates(
    scheduler: str, ca: str | None, cert: str | None, key: str | None
) -> dict[str, str] | None:
    """The three PEM files a tls:// address needs; None for tcp://.

    Raises:
        BadInput: one is missing, or they are given for an address without TLS.
    """
    given = {"ca": ca, "cert": cert, "key": key}
    if not scheduler.startswith("tls://"):
        if any(given.values()):
            raise BadInput(f"{scheduler} is no tls:// address; --tls-... has no use there.")
        return None
    files = {name: str(path) for name, path in given.items()}
    absent = [n for n, path in given.items() if path is None or not Path(path).is_file()]
    if absent:
        raise BadInput(
            f"{scheduler} needs TLS: give a readable PEM file for each of "
            f"{', '.join(f'--tls-{name}' for name in absent)}."
        )
    return files


def own_host(scheduler: str) -> str:
    """The address of this machine as the scheduler sees it; opens no connection."""
    target = urlsplit(scheduler if "://" in scheduler else f"tcp://{scheduler}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((target.hostname or "127.0.0.1", target.port or 8786))
        return str(probe.getsockname()[0])


def _weights_of(card: str) -> str:
    """Hash of a card's weights; trained first when there are none yet."""
    from kdlab.config.check import construct
    from kdlab.config.load import compose_card
    from kdlab.report.progress import Progress
    from kdlab.train.teacher import TeacherSpec, prepare

    spec = construct(TeacherSpec, compose_card(card))
    with Progress() as progress:

        def emit(event: str, /, **data: Any) -> None:
            progress.see({"event": event, "member": "teacher", **data})

        return prepare(spec, emit).sha256
