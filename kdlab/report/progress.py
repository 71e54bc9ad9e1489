"""Progress of a run: a live block in a terminal, else plain lines."""

import sys
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from kdlab.events.event import Event
from kdlab.events.run_state import RunState
from kdlab.events.runs import TeacherTraining
from kdlab.events.teachers import AllTeachersLost, PoolStarting
from kdlab.events.training import CheckpointSaved, EpochDone, StepLogged
from kdlab.report.table import visible

# Frequent events, which the block covers.
_NOT_PRINTED = (CheckpointSaved,)
_MOVES = (StepLogged, EpochDone, AllTeachersLost)  # update the block


def stderr_console() -> Console:
    """Return the console for messages: stderr, as stdout is for results.

    In a notebook it is the cell's output, which has no cursor for live updates.
    """
    console = Console(stderr=True)
    if not console.is_jupyter:
        return console
    return Console(file=sys.stdout, force_jupyter=False, force_terminal=False)


class Progress:
    """Show progress: pass events to `on_event`. A live block in a terminal, else lines."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or stderr_console()
        self.live: Live | None = None  # block of a terminal
        self.run = RunState()

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=8, transient=True)
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()
            sys.stderr.flush()

    def on_event(self, event: Event) -> None:
        self.run.apply(event)
        match event:
            case PoolStarting() | TeacherTraining() if self.live is not None:
                self.live.update(Spinner("dots", event.text()))
            case EpochDone():
                self._print_epoch(event)
        if not isinstance(event, _NOT_PRINTED) and (line := event.text()):
            self._print_line(line)
        if self.live is not None and isinstance(event, _MOVES) and self.run.newest.step:
            self.live.update(self._block())

    def _print_line(self, line: str) -> None:
        # Text, not markup: names from configs must not become colours.
        self.console.print(Text(visible(line)), highlight=False, soft_wrap=True)

    def _print_epoch(self, event: EpochDone) -> None:
        if self.console.is_terminal and event.epoch < event.of_epochs:
            return
        top1 = event.validation_top1
        shown = "" if top1 is None else f"  validation top-1 {top1:.2f} %"
        self._print_line(
            f"  {event.member}: epoch {event.epoch}/{event.of_epochs}{self._loss()}{shown}"
            f"  {event.samples_per_second:.0f} samples/s"
        )

    def _loss(self) -> str:
        """Return the loss; empty before the session's first step (resumed at an epoch's end)."""
        loss = self.run.newest.loss
        return "" if loss is None else f"  loss {loss:.4f}"

    def _block(self) -> Group:
        now = self.run.newest
        words = [
            str(now.member),
            f"epoch {min(now.epoch + 1, now.of_epochs or now.epoch + 1)}",
            self._loss().strip() or "loss -",
            "top-1 -" if now.top1 is None else f"top-1 {now.top1:.2f} %",
            f"{now.rate:.0f} samples/s",
        ]
        parts = [Text("  ".join(words))]
        if now.of_steps:
            share = now.step / now.of_steps
            parts.append(Text(f"steps  [{_bar(share)}] {now.step} of {now.of_steps}"))
        if (volume := now.figures.get("volume")) is not None:
            parts.append(self._volume(volume))
            alive, resends = (now.figures.get(key, 0.0) for key in ("teachers", "resends"))
            parts.append(Text(f"teachers alive {alive:.0f}  batches re-sent {resends:.0f}"))
        return Group(*parts)

    def _volume(self, volume: float) -> Text:
        """Return a bar of unused soft labels, with the lower threshold marked."""
        started = self.run.started
        lt, ut = (bound or 0 for bound in (started.thresholds if started else (0, 0)))
        size = max(1, ut)
        bar = _bar(volume / size, mark=lt / size)
        return Text(f"volume [{bar}] {volume:.0f} of {ut:g} (lt {lt:g})")


def _bar(share: float, mark: float | None = None, width: int = 40) -> str:
    """Return a bar of `width` characters, filled to `share`, with `|` at `mark`."""
    filled = round(width * min(1.0, share))
    cells = ["#" if i < filled else "." for i in range(width)]
    if mark is not None:
        cells[min(width - 1, round(width * mark))] = "|"
    return "".join(cells)
