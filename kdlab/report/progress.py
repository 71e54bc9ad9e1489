"""A run in the terminal: one live block, or plain lines where there is no terminal."""

import sys
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from kdlab.events.event import Event
from kdlab.events.runs import MemberStarted, RunStarted, TeacherTraining
from kdlab.events.teachers import PoolStarting, TeachersGone
from kdlab.events.training import CheckpointSaved, EpochDone, StepLogged

# They come often; the block says where the training stands.
_SEEN_OTHERWISE = (CheckpointSaved,)


def people() -> Console:
    """Lines for people go to stderr, as stdout is for results; in a notebook below the cell."""
    console = Console(stderr=True)
    return Console(file=sys.stdout, force_jupyter=False) if console.is_jupyter else console


class Progress:
    """Feed it events with `see`. A block where it is a terminal, else lines."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or people()
        self.live: Live | None = None
        self.now: dict[str, Any] = {}
        self.thresholds: list[Any] = [None, None]

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=8, transient=True)
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()
            sys.stderr.flush()

    def see(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.thresholds = event.thresholds
            case MemberStarted():
                self.now = {"member": event.member}
            case StepLogged():
                # People count epochs from 1.
                self.now |= event.facts() | {"of_epoch": event.epoch + 1}
            case PoolStarting() | TeacherTraining():  # what was before is over
                self.now = {}
                if self.live is not None:
                    self.live.update(Spinner("dots", event.text()))
            case TeachersGone():  # no step follows that would say it
                self.now["teachers"] = 0
            case EpochDone():
                self.now |= event.facts() | {"of_epoch": event.epoch}
                self._say_epoch(event)
        if not isinstance(event, _SEEN_OTHERWISE) and (line := event.text()):
            self._say(line)
        if self.live is not None and self.now.get("step"):
            self.live.update(self._block())

    def _say(self, line: str) -> None:
        # Text, not markup: names from configs must not be read as colours.
        self.console.print(Text(line), highlight=False, soft_wrap=True)

    def _say_epoch(self, event: EpochDone) -> None:
        if self.console.is_terminal and event.epoch < event.of_epochs:
            return
        top1 = event.validation_top1
        shown = "" if top1 is None else f"  validation top-1 {top1:.2f} %"
        self._say(
            f"  {event.member}: epoch {event.epoch}/{event.of_epochs}{_loss(self.now)}{shown}"
            f"  {event.samples_per_second:.0f} samples/s"
        )

    def _block(self) -> Group:
        now = self.now
        top1 = now.get("validation_top1")
        words = [
            str(now["member"]),
            f"epoch {now['of_epoch']}",
            _loss(now).strip() or "loss -",
            "top-1 -" if top1 is None else f"top-1 {top1:.2f} %",
            f"{now['samples_per_second']:.0f} samples/s",
        ]
        parts: list[Any] = [Text("  ".join(words))]
        if now.get("of_steps"):
            share = now["step"] / now["of_steps"]
            parts.append(Text(f"steps  [{_bar(share)}] {now['step']} of {now['of_steps']}"))
        if "volume" in now:
            parts += [self._volume(now), self._teachers(now)]
        return Group(*parts)

    def _volume(self, now: dict[str, Any]) -> Text:
        """Unused soft labels and requests in flight, with the lower threshold marked."""
        lt, ut = (bound or 0 for bound in self.thresholds)
        size = max(1, ut)
        bar = _bar(now["volume"] / size, mark=lt / size)
        return Text(f"volume [{bar}] {now['volume']:.0f} of {ut:g} (lt {lt:g})")

    def _teachers(self, now: dict[str, Any]) -> Text:
        alive, again = now.get("teachers", 0), now.get("resends", 0)
        return Text(f"teachers alive {alive:.0f}  batches re-sent {again:.0f}")


def _bar(share: float, mark: float | None = None, width: int = 40) -> str:
    """A bar of `width` characters, filled to `share`, with `|` at `mark`."""
    filled = round(width * min(1.0, share))
    cells = ["#" if i < filled else "." for i in range(width)]
    if mark is not None:
        cells[min(width - 1, round(width * mark))] = "|"
    return "".join(cells)


def _loss(now: dict[str, Any]) -> str:
    """Empty before the first step of a session (a run resumed at the end of an epoch)."""
    return f"  loss {now['loss']:.4f}" if "loss" in now else ""
