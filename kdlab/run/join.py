"""`kdlab teacher ADDRESS`: this machine becomes a teacher of a pool."""

import asyncio
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

from kdlab.cluster.child_configs import TeacherConfig
from kdlab.cluster.limits import usable_cores
from kdlab.cluster.transport.roles import REFUSED
from kdlab.cluster.transport.security import load_credentials
from kdlab.config.check import construct
from kdlab.config.credentials import host_port
from kdlab.config.load import compose_card
from kdlab.errors import BadInput, TeacherRefused


def join(config: TeacherConfig, model: str | None) -> int:
    """Serve until Ctrl-C or SIGTERM, which withdraws the teacher gracefully.

    The exit code tells a supervisor what to do: 0 it was asked to leave; 1 its inference
    failed, start it again; 2 the pool refused it, inspect it; 3 the scheduler was away too long.

    Args:
        config: name, host and threads default to those of this machine.
        model: a teacher card; its weights must be those the pool serves. None serves whatever
            the pool serves.

    Raises:
        SchedulerUnreachable: no scheduler answers at the address.
        TeacherRefused: the pool serves another model.
    """
    from kdlab.cluster.schedulers import install
    from kdlab.cluster.teachers.teacher_server import serve

    scheduler = config.scheduler
    install(scheduler, config.tls)
    name = config.name or f"{socket.gethostname()}-{os.getpid()}"
    complete = replace(
        config,
        name=name,
        threads=config.threads or usable_cores(),
        host=config.host or own_host(scheduler),
        sha256=None if model is None else _weights_of(model),
    )
    print(f"teacher {name} joins {scheduler}; Ctrl-C withdraws it", file=sys.stderr)

    def say(line: str) -> None:
        print(f"{name}: {line}", file=sys.stderr, flush=True)

    ending = asyncio.run(serve(complete, say))
    if ending.code == REFUSED:
        raise TeacherRefused(f"This teacher cannot serve at {scheduler}: {ending.why}")
    if ending.code:
        say(str(ending.why))
    return ending.code


def certificates(
    scheduler: str, ca: str | None, cert: str | None, key: str | None, *, insecure: bool
) -> dict[str, str] | None:
    """Return the three PEM files that a tls:// address needs; None for tcp://.

    Those of a pool that this user runs on this machine are found by its address.

    Raises:
        BadInput: a file is missing, files were given for an address without TLS, or such an
            address was given without `insecure`; or the address is malformed.
    """
    host_port(scheduler)
    paths = {"ca": ca, "cert": cert, "key": key}
    if not scheduler.startswith("tls://"):
        if any(paths.values()):
            raise BadInput(f"{scheduler} is no tls:// address; --tls-... has no use there.")
        if not insecure:
            raise BadInput(
                f"{scheduler} is plain TCP: anyone who can connect can run code on this machine "
                "as you. Use a tls:// address, or add --insecure where the network keeps "
                "others out."
            )
        return None
    running = load_credentials(scheduler) if not any(paths.values()) else None
    if running is not None:
        return running
    files = {name: str(path) for name, path in paths.items()}
    absent = [n for n, path in paths.items() if path is None or not Path(path).is_file()]
    if absent:
        raise BadInput(
            f"{scheduler} needs TLS: give a readable PEM file for each of "
            f"{', '.join(f'--tls-{name}' for name in absent)}."
        )
    return files


def own_host(scheduler: str) -> str:
    """Return the address of this machine as the scheduler sees it; opens no connection."""
    host, port = host_port(scheduler)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host or "127.0.0.1", port or 8786))
        return str(probe.getsockname()[0])


def _weights_of(card: str) -> str:
    """Return the hash of a card's weights; a teacher without weights is trained first."""
    from kdlab.report.progress import Progress
    from kdlab.train.teacher import TeacherSpec, prepare

    spec = construct(TeacherSpec, compose_card(card))
    if not spec.trainable:
        raise BadInput(
            f"{card} has neither weights nor data and recipe to train them, and no experiment "
            "adds these. Add model.weights, or data and recipe."
        )
    if spec.classes is not None:
        raise BadInput(
            f"{card} names its classes (teacher.classes), and only an experiment's data tells "
            "which to keep. Omit --model: the teacher then serves what the pool serves."
        )
    with Progress() as progress:
        return prepare(spec, lambda e: progress.on_event(e.but(member="teacher"))).sha256
