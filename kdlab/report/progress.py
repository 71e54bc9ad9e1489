"""A run in the terminal: one live block, or plain lines where there is no terminal."""

import sys
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

_WORTH_A_LINE = {
    "note": "{message}",
    "warning": "warning: {message}",
    "teacher_training": "training the teacher ({epochs} epochs); it is kept for later runs",
    "teacher_ready": "teacher ready: {validation_top1:.2f} % top-1 on validation",
    "pool_starting": "teacher pool: {pool}",
    "pool_ready": "teachers are ready at {address}",
    "steered": "{who}from step {step} on: {values}",
    "paused": "{who}paused after step {step}; kdlab control RUN go-on",
    "went_on": "{who}goes on from step {step}",
    "teacher_added": "one more teacher was asked for (pid {pid})",
    "teacher_drained": "{target} was asked to leave",
    "models_served": "the pool serves the local models {models}",
    "scheduled": (
        "t_s {t_s:.0f}, t_t {t_t:.0f} samples/s: n = {n} teachers wanted, {got} assigned"
    ),
    "teacher_joined": "{name} joined ({device}, {t_t:.0f} samples/s, pid {pid})",
    "teacher_left": "{teacher} left politely",
    "teacher_lied": (
        "{teacher} gave other soft labels than the other teachers and is left out: "
        "{sent_again} samples are asked again, {trained} were trained on (batches "
        "{first_trained} to {last_trained})"
    ),
    "threshold_limits": (
        "the student waits although teachers have nothing to do: soft_labels.ut={ut} holds "
        "them back; soft_labels.ut={enough} would do"
    ),
    "memory_limits": (
        "the student waits although teachers have nothing to do: the memory that is free "
        "holds the inputs of {limit} samples in flight, {enough} would do; "
        "soft_labels.inputs=reference needs none"
    ),
    "coordinator_away": (
        "the pool's scheduler does not answer ({why}); {teachers} teachers serve on"
    ),
    "coordinator_back": "the pool's scheduler is back",
    "reader_restarted": "{why}; another one goes on from epoch {epoch}, batch {batches}",
    "teacher_lost": "{teacher} is lost: {why}. {resent} batches are sent again",
    "no_teacher": (
        "no teacher is left for {unplaced} samples; the student waits up to {wait_s:.0f} s. "
        "Start one:\n    {join}"
    ),
    "cache_started": (
        "writing soft labels of {samples} samples, {views} views: {megabytes:.3g} MB to {folder}"
    ),
    "cache_written": "soft labels written",
    "plan": "{table}",
    "plan_measured": (
        "a step took {measured_s:.4f} s, predicted {predicted_s:.4f} s "
        "({predicted_over_measured:.2f} of it)"
    ),
    "methods_compared": "compared in {artifacts}",
    "architecture_found": "the search found {choices}",
    "whole_student": "training the whole student ({epochs} epochs)",
    "rank_lost": "{rank} is lost: {why}",
    "look": (
        "  {member}: {iterations} iterations  test error local {chosen:.2f} %, global "
        "{global_:.2f} %  after {parallel_s:.1f} s side by side"
    ),
    "worker_lost": "worker {worker} is lost: {why}",
    "round_incomplete": "round {round} goes on with the models of {models}",
    "resumed": "resumed after {epoch} epochs, {step} steps",
}


def who(event: Mapping[str, Any]) -> str:
    """Before what is told, where one of several local models did it."""
    return f"worker {event['worker']}: " if "worker" in event else ""


class Progress:
    """Feed it events with `see`. Writes to stderr, so that --json keeps stdout clean."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
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

    def see(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "run_started":
            self.thresholds = event["thresholds"]
            self._say(f"run {event['run_id']} ({event['experiment']})")
        elif kind == "member_started":
            self.now = {"member": event["member"]}
            self._say(f"training {event['member']}")
        elif kind == "step":
            self.now |= event | {"of_epoch": event["epoch"] + 1}  # people count from 1
        elif kind == "epoch_done":
            self.now |= event | {"of_epoch": event["epoch"]}
            self._say_epoch(event)
        elif kind == "teacher_requested":
            got = "one was free" if event["granted"] else "none is free; the next one comes"
            self._say(f"the student starves: asked for one more teacher ({got})")
        elif kind in _WORTH_A_LINE:
            self._say(_WORTH_A_LINE[kind].format_map(_Lenient(event | {"who": who(event)})))
        if self.live is not None and self.now.get("step"):
            self.live.update(self._block())

    def _say(self, line: str) -> None:
        # Text, not markup: names from configs must not be read as colours.
        self.console.print(Text(line), highlight=False, soft_wrap=True)

    def _say_epoch(self, event: dict[str, Any]) -> None:
        if self.console.is_terminal and event["epoch"] < event["of_epochs"]:
            return
        top1 = event.get("validation_top1")
        shown = "" if top1 is None else f"  validation top-1 {top1:.2f} %"
        self._say(
            f"  {event['member']}: epoch {event['epoch']}/{event['of_epochs']}"
            f"{_loss(self.now)}{shown}"
            f"  {event['samples_per_second']:.0f} samples/s"
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


class _Lenient(dict[str, Any]):
    """A fact that an older event lacks is shown as a dash."""

    def __missing__(self, key: str) -> "_Dash":
        return _Dash()


class _Dash:
    def __format__(self, spec: str) -> str:
        return "-"
