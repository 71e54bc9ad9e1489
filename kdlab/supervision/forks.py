"""A shorter way to start a process, which tests take: tests/fork_server.py forks it."""

import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol


class Fork(Protocol):
    def __call__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        fds: Mapping[int, int],
        *,
        new_session: bool = False,
    ) -> "subprocess.Popen[bytes] | None":
        """What behaves as `python -m`; None where it must be started in the usual way.

        `environment` is all of it; `fds` are the file descriptors it has, by the number in
        it.
        """


fork: Fork | None = None  # of this process
