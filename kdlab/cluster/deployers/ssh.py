"""Machines reached by SSH, with workers started as by Dask's `SSHCluster`."""

import asyncio
import getpass
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from distributed.core import Status
from distributed.deploy.ssh import Worker
from distributed.utils import get_ip

from kdlab.cluster.deployers.deployer import WORKER_OPTIONS, Deployer, StandingCluster
from kdlab.cluster.transport.security import Files
from kdlab.config import Fault, Range, register
from kdlab.errors import ClusterError

_LOGIN_S = 15.0
_END_S = 15.0  # for a worker to end by itself
_HOST = re.compile(r"[\w.:-]+")
_PYTHON = re.compile(r"(/[\w.+-]+)*/python[\d.]*")
_LOCAL = ("127.0.0.1", "localhost", "::1")


@register("cluster/deployers/ssh")
@dataclass(frozen=True, kw_only=True)
class SshMachines(Deployer):
    """Machines with kdlab installed and login without a password.

    Run folder and certificates must be at the same paths there (a file system they share), or
    `teacher_pool.tls` names files that each machine has.

    hosts: names or addresses; as many are used as the students need.
    user: login name; null is yours.
    key: private key; null takes those of ~/.ssh and the agent.
    known_hosts: file with their keys; null is ~/.ssh/known_hosts.
    python: path of their interpreter; null is the path of this one.
    """

    needs = ("asyncssh", "ssh")

    hosts: tuple[str, ...]
    user: str | None = None
    port: Annotated[int, Range(ge=1, le=65535)] = 22
    key: str | None = None
    known_hosts: str | None = None
    python: str | None = None

    def cross_faults(self) -> Iterator[Fault]:
        if not self.hosts:
            yield Fault("hosts", "is empty; name at least one machine")
        if len(set(self.hosts)) < len(self.hosts):
            yield Fault("hosts", "names a machine twice; each has one worker")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                yield Fault("hosts", f"has {host!r}, which is no name or address of a host")
        if self.python is not None and not _PYTHON.fullmatch(self.python):
            yield Fault(
                "python",
                f"is {self.python!r}; it must be the path of a python, /.../python3",
            )

    def at_most(self) -> int:
        return len(self.hosts)

    def reached_at(self) -> str:
        return "127.0.0.1" if all(host in _LOCAL for host in self.hosts) else str(get_ip())

    def cluster(self, scheduler: str, files: Files, folder: Path) -> "_HostsCluster":
        login: dict[str, Any] = {
            "port": self.port,
            "username": self.user or getpass.getuser(),
            "known_hosts": os.path.expanduser(self.known_hosts or "~/.ssh/known_hosts"),
            "connect_timeout": _LOGIN_S,
            "login_timeout": _LOGIN_S,
        }
        if self.key is not None:
            login["client_keys"] = [os.path.expanduser(self.key)]
        options = {
            "connect_options": login,
            "remote_python": self.python or sys.executable,
            "worker_class": "kdlab.cluster.deployers.deployer.HostNanny",
            "kwargs": {
                **WORKER_OPTIONS,
                "local_directory": str(folder),
                "protocol": "tls",
                "tls": files,
                "lifeline": True,
            },
        }
        return _HostsCluster(self.hosts, options, scheduler, files)


class _SshWorker(Worker):
    """Dask's worker by SSH, which gets time to end before it is killed."""

    async def start(self) -> None:
        import asyncssh  # an extra  # noqa: PLC0415

        connection = await asyncssh.connect(self.address, **self.connect_options)
        try:
            spec = {"worker": {"cls": self.worker_class, "opts": self.kwargs}}
            words = (self.remote_python, "-m", "distributed.cli.dask_spec", self.scheduler)
            command = shlex.join([*words, "--spec", json.dumps(spec)])
            self.proc = await connection.create_process(command)
            while "worker at" not in (line := await self.proc.stderr.readline()):
                if not line:
                    raise OSError(f"the worker on {self.address} ended before it was up")
        except BaseException:
            connection.close()
            raise
        self.connection = connection
        # Nobody reads its further output, which must not fill a pipe.
        self.drained = asyncio.create_task(self._drain())
        self.status = Status.running

    async def _drain(self) -> None:
        while await self.proc.stderr.readline():
            pass

    async def close(self) -> None:
        if self.status == Status.running:
            self.proc.stdin.write_eof()  # its lifeline
            with suppress(TimeoutError):
                await asyncio.wait_for(self.proc.wait_closed(), _END_S)
            self.proc.kill()
            self.connection.close()
        self.status = Status.closed


class _HostsCluster(StandingCluster):
    """A cluster of fixed hosts: each new worker goes to a host without one."""

    def __init__(
        self, hosts: tuple[str, ...], options: dict[str, Any], scheduler: str, files: Files
    ) -> None:
        # A tried host goes to the end, so that a host that is down blocks no other.
        self.hosts, self.options = list(hosts), options
        super().__init__(scheduler, files, name="ssh")

    def new_worker_spec(self) -> dict[str, Any]:
        used = {spec["options"]["address"] for spec in self.worker_spec.values()}
        host = next((host for host in self.hosts if host not in used), None)
        if host is None:
            raise ClusterError(f"All {len(self.hosts)} machines of the pool are in use.")
        self.hosts.remove(host)
        self.hosts.append(host)
        self._i += 1
        name = f"{host}-{self._i}"
        options = {**self.options, "address": host, "name": name}
        options["kwargs"] = {**self.options["kwargs"], "name": name}
        if host in _LOCAL:  # else Dask takes the address that others see
            options["kwargs"]["host"] = "127.0.0.1"
        return {name: {"cls": _SshWorker, "options": options}}
