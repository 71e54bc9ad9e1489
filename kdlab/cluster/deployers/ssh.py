"""Machines that are reached by SSH, as Dask's `SSHCluster` starts its workers on them."""

import getpass
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import SpecCluster
from distributed.deploy.ssh import Worker as SshWorker
from distributed.utils import get_ip

from kdlab.cluster.deployers.deployer import (
    WORKER_OPTIONS,
    DaskMachines,
    Deployer,
    StandingScheduler,
    needed,
)
from kdlab.cluster.wires import security
from kdlab.cluster.wires.security import Files
from kdlab.config import Fault, register

_HERE = ("127.0.0.1", "localhost", "::1")


@register("cluster/deployers/ssh")
@dataclass(frozen=True, kw_only=True)
class SshMachines(Deployer):
    """Machines with kdlab installed that one may log in to without a password.

    Run folder and certificates must be at the same paths there (a file system they share), or
    `teacher_pool.tls` names files that each machine has.

    hosts: their names or addresses; as many are used as the students need.
    user: to log in as; null is you.
    key: private key; null takes those of ~/.ssh and the agent.
    known_hosts: file that says who they are; null is ~/.ssh/known_hosts.
    python: interpreter there; null is the path of this one.
    """

    hosts: tuple[str, ...]
    user: str | None = None
    port: int = 22
    key: str | None = None
    known_hosts: str | None = None
    python: str | None = None

    def cross_faults(self) -> Iterator[Fault]:
        if not self.hosts:
            yield Fault("hosts", "is empty; name at least one machine")
        if self.python is not None and not _is_path(self.python):
            yield Fault("python", f"is {self.python!r}; it must be the path of a program")

    def check(self) -> None:
        needed("asyncssh", "ssh")

    def at_most(self) -> int:
        return len(self.hosts)

    def reached_at(self) -> str:
        return "127.0.0.1" if all(host in _HERE for host in self.hosts) else str(get_ip())

    def up(self, scheduler: str, files: Files, folder: Path) -> DaskMachines:
        security.use(
            files
        )  # what Dask hands to the workers is this process's configuration
        login: dict[str, Any] = {
            "port": self.port,
            "username": self.user or getpass.getuser(),
            "known_hosts": str(Path(self.known_hosts or "~/.ssh/known_hosts").expanduser()),
        }
        if self.key is not None:
            login["client_keys"] = [str(Path(self.key).expanduser())]
        options = {
            "connect_options": login,
            "remote_python": self.python,
            "worker_class": "kdlab.cluster.deployers.deployer.HostNanny",
            "kwargs": {
                **WORKER_OPTIONS,
                "local_directory": str(folder),
                "lifeline": True,
            },
        }
        return DaskMachines(_HostsCluster(self.hosts, options, scheduler, files))


class _HostsCluster(SpecCluster):
    """A cluster of fixed hosts: each worker goes to one that has none."""

    def __init__(
        self,
        hosts: tuple[str, ...],
        options: dict[str, Any],
        scheduler: str,
        files: Files,
    ) -> None:
        # A host that was tried last comes last, so that one that is down stops no other.
        self.hosts, self.options = list(hosts), options
        super().__init__(
            scheduler={"cls": StandingScheduler, "options": {"address": scheduler}},
            security=security.of_all_roles(files),
            name="ssh",
            shutdown_scheduler=False,
        )

    def new_worker_spec(self) -> dict[str, Any]:
        used = {spec["options"]["address"] for spec in self.worker_spec.values()}
        host = next(host for host in self.hosts if host not in used)
        self.hosts.remove(host)
        self.hosts.append(host)
        self._i += 1
        options = {**self.options, "address": host}
        options["kwargs"] = {**self.options["kwargs"], "name": f"{host}-{self._i}"}
        if host in _HERE:  # else Dask takes the address that others see
            options["kwargs"]["host"] = "127.0.0.1"
        return {f"{host}-{self._i}": {"cls": SshWorker, "options": options}}


def _is_path(words: str) -> bool:
    """Whether a shell at the other end sees one word in it, and nothing to expand."""
    return all(letter.isalnum() or letter in "/._-+" for letter in words) and bool(words)
