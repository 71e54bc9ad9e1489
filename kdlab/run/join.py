"""`kdlab teacher ADDRESS`: this machine becomes a teacher of a pool."""

import asyncio
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from kdlab.cluster.child_configs import TeacherConfig
from kdlab.cluster.limits import usable_cores
from kdlab.cluster.transport.roles import REFUSED
from kdlab.cluster.transport.security import load_credentials
from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.errors import BadInput, TeacherRefused


def join(config: TeacherConfig, model: str | None) -> int:
    """Serve until Ctrl-C or SIGTERM, which withdraws gracefully.

    The exit code tells a supervisor what to do: 0 it was told to leave; 1 its inference
    failed, start it again; 2 it is refused, look at it; 3 the scheduler was away too long.

    Args:
        config: without a name, host or threads they are of this machine.
        model: a teacher card; its weights must be those the pool serves. None serves whatever
            the pool serves.

    Raises:
        SchedulerUnreachable: nobody answers at the address.
        TeacherRefused: the pool serves another model.
    """
    from kdlab.cluster.schedulers import install
    from kdlab.cluster.teachers.teacher_server import serve

    scheduler = config.scheduler
    install(scheduler, config.tls)
    name = config.name or f"{socket.gethostname()}-{os.getpid()}"
    whole = replace(
        config,
        name=name,
        threads=config.threads or usable_cores(),
        host=config.host or own_host(scheduler),
        sha256=None if model is None else _weights_of(model),
    )
    print(f"teacher {name} joins {scheduler}; Ctrl-C withdraws it", file=sys.stderr)

    def say(line: str) -> None:
        print(f"{name}: {line}", file=sys.stderr, flush=True)

    ending = asyncio.run(serve(whole, say))
    if ending.code == REFUSED:
        raise TeacherRefused(f"This teacher cannot serve at {scheduler}: {ending.why}")
    if ending.code:
        say(str(ending.why))
    return ending.code


def certificates(
    scheduler: str, ca: str | None, cert: str | None, key: str | None, *, insecure: bool
) -> dict[str, str] | None:
    """The three PEM files a tls:// address needs; None for tcp://.

    Those of a pool that this user has up on this machine are found by its address.

    Raises:
        BadInput: one is missing, or they are given for an address without TLS, which must
            be asked for by name.
    """
    given = {"ca": ca, "cert": cert, "key": key}
    if not scheduler.startswith("tls://"):
        if any(given.values()):
            raise BadInput(f"{scheduler} is no tls:// address; --tls-... has no use there.")
        if not insecure:
            raise BadInput(
                f"{scheduler} is plain TCP: whoever can connect can run code on this machine "
                "as you. Use a tls:// address, or say --insecure where the network keeps "
                "others out."
            )
        return None
    own = load_credentials(scheduler) if not any(given.values()) else None
    if own is not None:
        return own
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
    from kdlab.report.progress import Progress
    from kdlab.train.teacher import TeacherSpec, prepare

    spec = construct(TeacherSpec, compose_card(card))
    if not spec.trainable:
        raise BadInput(
            f"{card} has neither weights nor data and recipe to train them: outside of an "
            "experiment nothing says how. Add model.weights, or data and recipe."
        )
    if spec.classes is not None:
        raise BadInput(
            f"{card} names its classes (teacher.classes), and how they are cut follows from an "
            "experiment's data. Leave --model away: the pool says what it serves."
        )
    with Progress() as progress:
        return prepare(spec, lambda event: progress.see(event.but(member="teacher"))).sha256
