"""Record the events of a pure machine and its answers as lines of JSON, to replay them.

A machine of kdlab/papers is a function of its events. `Recorded` wraps one and appends each
event with the machine's answer; `kdlab.testing.replay` feeds the same events to a fresh
machine and compares.
"""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Generic, TypeVar, cast

from kdlab.codec import to_builtins

M = TypeVar("M")
FORMAT = 2  # of journals; answers had another form in 1


class Recorded(Generic[M]):
    """A machine whose `on_...` calls are recorded; all else passes through.

    Args:
        machine: of kdlab/papers.
        path: of the journal; lines are appended.
        leave_out: frequent calls that decide nothing.
        state: a few numbers after each event, for machines that answer little.
        about: arguments with which a fresh machine begins alike.
    """

    def __init__(
        self,
        machine: M,
        path: Path,
        leave_out: Collection[str] = (),
        state: Callable[[M], object] = lambda machine: None,
        **about: object,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Each line is written at once, so a killed process loses none.
        self._journal = path.open("a", buffering=1, encoding="utf-8")
        self._machine, self._leave_out, self._state = machine, leave_out, state
        self._write(machine=type(machine).__name__, format=FORMAT, **about)

    def _write(self, **entry: object) -> None:
        self._journal.write(json.dumps(entry) + "\n")

    @property
    def machine(self) -> M:
        """This object, typed as the machine that it wraps."""
        return cast(M, self)

    def __getattr__(self, name: str) -> object:
        value = getattr(self._machine, name)
        if name.startswith("on_") and name not in self._leave_out:
            return self._recording(name, value)
        return value

    def _recording(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def recorded(*args: object, **kwargs: object) -> object:
            # Encoded before the call, which may change its arguments.
            event = {"args": to_builtins(args), "kwargs": to_builtins(kwargs)}
            answer = call(*args, **kwargs)
            self._write(
                on=name, **event, told=to_builtins(answer), state=self._state(self._machine)
            )
            return answer

        return recorded
