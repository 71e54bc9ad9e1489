"""The tree of every error that kdlab raises on purpose.

Each says what happened with numbers, what it means for the run, what to do, and where
to look. `exit_code` is the exit code of the command line: 2 for bad input found before
anything started, 1 for a run that failed, 130 for one stopped by its user.
"""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk, quota, largest file
_FULL_WORDS = tuple(os.strerror(number) for number in _FULL)


class KdlabError(Exception):
    """The root of the tree: catch it to catch every error that kdlab raises on purpose."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """Return the message alone for notebooks, without thirty lines of kdlab's frames."""
        return [f"{type(self).__name__}: {self}"]


class Diverged(KdlabError):
    """The loss of a training is no longer a number."""


class BadInput(KdlabError):
    """Bad input, found before anything was started."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a spec."""

    key: str  # dotted path, for example "loss.temperature"
    message: str
    origin: str = ""  # "configs/quickstart.yaml:12", "override", or "" in Python

    def under(self, path: str) -> "Fault":
        """Return the fault with its key below `path`, for a part of a larger spec."""
        return replace(self, key=f"{path}.{self.key}" if self.key else path)

    def __str__(self) -> str:
        where = f"{self.origin}: " if self.origin else ""
        key = f"{self.key}: " if self.key else ""
        # It may quote a value of a hundred thousand characters, or half a character.
        text = f"{short(key, _SHOWN)}{short(self.message, _SHOWN)}"
        return where + text.encode("utf-8", "backslashreplace").decode("utf-8")


_SHOWN = 2000  # characters of a message that are shown
_FAULTS = 50  # faults of one spec that are shown


def short(text: str, shown: int = 300) -> str:
    """Return the text, or its beginning and its length in characters."""
    if len(text) <= shown:
        return text
    return f"{text[: shown - 40]}... ({len(text):,} characters)"


class SpecError(BadInput):
    """A spec is faulty; `faults` lists every fault."""

    def __init__(self, faults: Sequence[Fault], about: str = "the spec") -> None:
        super().__init__(list(faults), about)
        self.faults = list(faults)
        self.about = about

    def __str__(self) -> str:
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        lines = "\n".join(f"  {fault}" for fault in self.faults[:_FAULTS])
        if len(self.faults) > _FAULTS:
            lines += f"\n  and {len(self.faults) - _FAULTS} more"
        return f"{count} in {self.about}; nothing was started:\n{lines}"


class NotFoundError(BadInput):
    """A config, card, run or component does not exist."""


class DataError(BadInput):
    """A data set is missing, empty, damaged or too large for this machine."""


class WeightsError(BadInput):
    """A weights file is missing, damaged, or made for another model."""


class ModelError(BadInput):
    """A model cannot be built, or does not fit its data or its partner."""


class CacheError(BadInput):
    """A soft-label cache cannot be replayed for this run."""


class ShapeError(KdlabError, ValueError):
    """Two tensors that must have the same shape do not."""

    def __init__(self, first: str, a: Any, second: str, b: Any) -> None:
        super().__init__(first, tuple(a.shape), second, tuple(b.shape))

    def __str__(self) -> str:
        first, a, second, b = self.args
        return (
            f"{first} has shape {a} and {second} has shape {b}; they must agree. "
            "The usual causes are a teacher with another number of classes and "
            "logits of another batch."
        )


class CheckpointError(KdlabError):
    """A checkpoint is damaged or belongs to another spec."""


class RunFailed(KdlabError):
    """A run's process ended with an error; the message quotes the end of its log."""


class RunStopped(KdlabError):
    """The user stopped the run; its state is saved."""

    exit_code = 130


class ClusterError(KdlabError):
    """A process or a connection between processes or machines failed."""


class SchedulerUnreachable(BadInput):
    """No scheduler answers at the address of a teacher pool."""

    def __init__(self, address: str, waited_s: float, cause: str) -> None:
        super().__init__(address, waited_s, cause)

    def __str__(self) -> str:
        address, waited_s, cause = self.args
        return (
            f"No scheduler answers at {address} (waited {waited_s:g} s: {cause}). "
            "Nothing was started.\n"
            "Check the address and that the scheduler runs, or start one:\n"
            "    dask scheduler --host 127.0.0.1 --port 8786\n"
            "A pool on this machine needs no address: teacher_pool=teacher_pools/local"
        )


def is_full(error: BaseException) -> bool:
    """Return whether an error means a full disk or quota."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    message = str(error)  # libraries in C and Rust keep only the text of the errno
    return any(words in message for words in _FULL_WORDS)


class TeacherRefused(ClusterError):
    """A teacher started but may not serve this run."""


def join_command(address: str) -> str:
    """Return the command that starts a teacher for the pool at this scheduler address."""
    plain = " --insecure" if address.startswith("tcp://") else ""
    return f"kdlab teacher {address}{plain}"


class NoTeacherLeft(ClusterError):
    """No teacher is left and none came back within the waiting time."""

    def __init__(
        self, unplaced: int, batches: int, waited_s: float, address: str, log: str
    ) -> None:
        super().__init__(unplaced, batches, waited_s, address, log)

    def __str__(self) -> str:
        unplaced, batches, waited_s, address, log = self.args
        return (
            f"No teacher is left for {unplaced} samples, and none joined in "
            f"{waited_s:g} s.\n"
            f"The student waits after {batches} batches; none ran without soft labels "
            "and no sample is lost.\n"
            "Start a teacher, then resume the run from its last checkpoint:\n"
            f"    {join_command(address)}\n"
            f"Log of the reader: {log}"
        )
