"""A run in the terminal: one live block, or plain lines where there is no terminal."""

import sys
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from kdlab.events.event import Event
from kdlab.events.runs import MemberStarted, RunStarted, TeacherTraining
from kdlab.events.teachers import PoolStarting, TeachersGone
from kdlab.events.training import CheckpointSaved, EpochDone, StepLogged
from kdlab.report.table import visible

# They come often; the block says where the training stands.
_SEEN_OTHERWISE = (CheckpointSaved,)


def people() -> Console:
    """Lines for people go to stderr, as stdout is for results; in a notebook below the cell.

    There they stay as they are printed: a cell's output has no cursor to go up with.
    """
    console = Console(stderr=True)
    if not console.is_jupyter:
        return console
    return Console(file=sys.stdout, force_jupyter=False, force_terminal=False)


@dataclass(slots=True)
class _Now:
    """Where a training stands, for people: epochs count from 1."""

    member: str | None = None
    of_epoch: int = 0
    step: int = 0
    of_steps: int = 0
    loss: float | None = None
    top1: float | None = None  # percent, on validation
    samples_per_second: float = 0.0
    volume: float | None = None  # unused soft labels and requests in flight
    teachers: float = 0
    resends: float = 0


class Progress:
    """Feed it events with `see`. A block where it is a terminal, else lines."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or people()
        self.live: Live | None = None  # the block
        self.now = _Now()
        self.thresholds: list[float | None] = [None, None]  # lt and ut, in samples

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
                self.now = _Now(event.member)
            case StepLogged():
                self._see_step(event)
            case PoolStarting() | TeacherTraining():  # what was before is over
                self.now = _Now()
                if self.live is not None:
                    self.live.update(Spinner("dots", event.text()))
            case TeachersGone():  # no step follows that would say it
                self.now.teachers = 0
            case EpochDone():
                now, now.member = self.now, event.member
                now.of_epoch, now.step = event.epoch, event.step
                now.samples_per_second = event.samples_per_second
                if event.validation_top1 is not None:
                    now.top1 = event.validation_top1
                self._say_epoch(event)
        if not isinstance(event, _SEEN_OTHERWISE) and (line := event.text()):
            self._say(line)
        if self.live is not None and self.now.step:
            self.live.update(self._block())

    def _see_step(self, event: StepLogged) -> None:
        now, figures = self.now, event.figures
        now.member, now.of_epoch = event.member, event.epoch + 1
        now.step, now.of_steps, now.loss = event.step, event.of_steps, event.loss
        now.samples_per_second = event.samples_per_second
        now.volume = figures.get("volume", now.volume)
        now.teachers = figures.get("teachers", now.teachers)
        now.resends = figures.get("resends", now.resends)

    def _say(self, line: str) -> None:
        # Text, not markup: names from configs must not be read as colours.
        self.console.print(Text(visible(line)), highlight=False, soft_wrap=True)

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
        words = [
            str(now.member),
            f"epoch {now.of_epoch}",
            _loss(now).strip() or "loss -",
            "top-1 -" if now.top1 is None else f"top-1 {now.top1:.2f} %",
            f"{now.samples_per_second:.0f} samples/s",
        ]
        parts = [Text("  ".join(words))]
        if now.of_steps:
            share = now.step / now.of_steps
            parts.append(Text(f"steps  [{_bar(share)}] {now.step} of {now.of_steps}"))
        if now.volume is not None:
            parts.append(self._volume(now.volume))
            said = f"alive {now.teachers:.0f}  batches re-sent {now.resends:.0f}"
            parts.append(Text(f"teachers {said}"))
        return Group(*parts)

    def _volume(self, volume: float) -> Text:
        """Unused soft labels and requests in flight, with the lower threshold marked."""
        lt, ut = (bound or 0 for bound in self.thresholds)
        size = max(1, ut)
        bar = _bar(volume / size, mark=lt / size)
        return Text(f"volume [{bar}] {volume:.0f} of {ut:g} (lt {lt:g})")


def _bar(share: float, mark: float | None = None, width: int = 40) -> str:
    """A bar of `width` characters, filled to `share`, with `|` at `mark`."""
    filled = round(width * min(1.0, share))
    cells = ["#" if i < filled else "." for i in range(width)]
    if mark is not None:
        cells[min(width - 1, round(width * mark))] = "|"
    return "".join(cells)


def _loss(now: _Now) -> str:
    """Empty before the first step of a session (a run resumed at the end of an epoch)."""
    return "" if now.loss is None else f"  loss {now.loss:.4f}"
