"""From the events of a run to what there is to see: a machine without clock or widget.

Events in, facts to draw out. The same for the live monitor, for the picture that stays in a
saved notebook, and for a test.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kdlab.notebook.curve import Curve
from kdlab.report.progress import who

# Panel, curve, key of a `step` event. Panels are drawn in this order, one above the other.
_STEP = (
    ("loss", "loss", "loss"),
    ("samples/s", "student", "samples_per_second"),
    ("unused soft labels", "volume", "volume"),
)
_EPOCH = (("top-1 on validation, %", "student", "validation_top1"),)
_LOOK = (
    ("test error, %", "local (_L)", "chosen"),
    ("test error, %", "global (_G)", "global_"),
)
_TICKER = 200

# What is worth a line of the ticker, and how it reads.
_LINES = {
    "teacher_joined": "{name} joined ({device}, {t_t:.0f} samples/s)",
    "teacher_left": "{teacher} left politely",
    "teacher_lost": "{teacher} is lost: {resent} batches are sent again",
    "no_teacher": "no teacher is left for {unplaced} samples",
    "teacher_lied": "{teacher} gave wrong soft labels: {sent_again} samples are asked again",
    "threshold_limits": "soft_labels.ut={ut} keeps the student waiting; {enough} would do",
    "memory_limits": "memory for inputs in flight keeps the student waiting",
    "coordinator_away": "the scheduler does not answer; {teachers} teachers serve on",
    "coordinator_back": "the scheduler is back",
    "reader_restarted": "the reader was started again",
    "chaos": "chaos: {kind} {target}",
    "teacher_added": "one more teacher was asked for",
    "teacher_drained": "{target} was asked to leave",
    "steered": "{who}from step {step} on: {set}",
    "paused": "{who}paused after step {step}",
    "went_on": "{who}goes on from step {step}",
    "checkpoint_saved": "{who}checkpoint at step {step}",
    "resumed": "goes on from epoch {epoch}, step {step}",
    "rank_lost": "{rank} is lost",
    "generation": "the ranks begin together",
    "batch_shared": "rows of a batch on each rank: {rows} ({shares} shares)",
    "worker_lost": "worker {worker} is lost",
    "round_incomplete": "round {round}: only the models {models} arrived",
    "models_served": "the pool serves the local models {models}",
    "plan_measured": "a step takes {measured_s:.4f} s, predicted {predicted_s:.4f} s",
    "warning": "warning: {message}",
    "note": "{message}",
}


@dataclass(slots=True)
class TeacherRow:
    name: str
    state: str  # "assigned", "left", "lost"
    device: str = ""
    t_t: float = 0.0  # samples/s
    resends: int = 0
    since: float = 0.0


@dataclass(slots=True)
class Watch:
    """What one run has shown so far, of the member that trains now."""

    state: str = "starting"
    member: str = ""
    experiment: str = ""
    began: float = 0.0
    time: float = 0.0  # of the newest event
    step: int = 0
    of_steps: int = 0
    epoch: int = 0
    rate: float = 0.0
    paused: bool = False
    lines: dict[str, dict[str, float]] = field(default_factory=dict)  # by panel and name
    curves: dict[tuple[str, str], Curve] = field(default_factory=dict)
    teachers: dict[str, TeacherRow] = field(default_factory=dict)
    ticker: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_TICKER))
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # by member
    news: list[tuple[str, str, float, float]] = field(default_factory=list)
    spans: list[Any] = field(default_factory=list)  # what devices did, of blockwise runs
    values: dict[str, float] = field(default_factory=dict)  # that were set from outside
    chapter: int = 0  # grows when all curves begin anew

    def see(self, event: Mapping[str, Any]) -> None:
        """One event of `events.jsonl`."""
        self.time = float(event["time"])
        kind = str(event["event"])
        if "member" in event and kind == "member_started":
            self._begin(str(event["member"]))
        handler = getattr(self, f"_on_{kind}", None)
        if handler is not None:
            handler(event)
        if kind in _LINES:
            facts = dict(event)
            facts["who"] = who(event)
            if kind == "steered":
                facts["set"] = ", ".join(f"{k} = {v:g}" for k, v in event["values"].items())
            try:
                self.ticker.append((self.time, _LINES[kind].format(**facts)))
            except KeyError:  # of another version of kdlab
                self.ticker.append((self.time, kind))

    def _begin(self, member: str) -> None:
        """Another member: its own curves; what came of the others stays."""
        self.member, self.paused = member, False
        self.chapter += 1
        self.values.clear()
        self.curves.clear()
        self.teachers.clear()
        self.news.clear()
        self.spans = []
        self.lines.pop("samples/s", None)
        self.step = self.of_steps = self.epoch = 0

    def _on_run_started(self, event: Mapping[str, Any]) -> None:
        self.state, self.began = "running", self.began or self.time
        self.paused = False
        self.experiment = str(event.get("experiment", ""))
        spec = event.get("spec") or {}
        soft = spec.get("soft_labels") or {}
        if soft.get("type") == "cluster/served" and soft.get("thresholds_in") == "samples":
            bounds = {name: soft[name] for name in ("lt", "ut") if soft[name] is not None}
            self.lines["unused soft labels"] = bounds

    def _on_step(self, event: Mapping[str, Any]) -> None:
        if event.get("member") == "teacher" and self.member:
            return
        self.step, self.of_steps = int(event["step"]), int(event["of_steps"])
        self.epoch = int(event["epoch"])
        self.rate = float(event["samples_per_second"])
        self._points(_STEP, event, self.step)

    def _on_local_step(self, event: Mapping[str, Any]) -> None:
        self.step, self.of_steps = int(event["step"]), int(event["of_steps"])
        if event.get("loss") is not None:
            name = f"worker {event['worker']}"
            self._point("loss", name, self.step, float(event["loss"]))

    def _on_epoch_done(self, event: Mapping[str, Any]) -> None:
        if event.get("member") == "teacher" and self.member:
            return
        self._points(_EPOCH, event, float(event["epoch"]))

    def _on_look(self, event: Mapping[str, Any]) -> None:
        self._points(_LOOK, event, float(event["iterations"]))

    def _on_scheduled(self, event: Mapping[str, Any]) -> None:
        """t_s: what the student does when soft labels are free (N-training)."""
        self.lines["samples/s"] = {"t_s": float(event["t_s"])}

    def _on_steered(self, event: Mapping[str, Any]) -> None:
        self.values |= event["values"]
        for name, value in event["values"].items():
            part, _, key = name.partition(".")
            if part == "soft_labels" and "unused soft labels" in self.lines:
                self.lines["unused soft labels"][key] = float(value)

    def _on_trace(self, event: Mapping[str, Any]) -> None:
        self.spans = list(event["spans"])

    def _on_paused(self, event: Mapping[str, Any]) -> None:
        self.paused = True

    def _on_went_on(self, event: Mapping[str, Any]) -> None:
        self.paused = False

    def _on_teacher_joined(self, event: Mapping[str, Any]) -> None:
        row = TeacherRow(
            str(event["name"]),
            "assigned",
            str(event.get("device", "")),
            float(event.get("t_t", 0.0)),
            since=self.time,
        )
        before = self.teachers.get(row.name)
        if before is not None:
            row.resends = before.resends
        self.teachers[row.name] = row

    def _on_teacher_left(self, event: Mapping[str, Any]) -> None:
        self._gone(event, "left")

    def _on_teacher_lost(self, event: Mapping[str, Any]) -> None:
        self._gone(event, "lost")

    def _gone(self, event: Mapping[str, Any], state: str) -> None:
        row = self.teachers.get(str(event["teacher"]))
        if row is not None:
            row.state, row.since = state, self.time
            row.resends += int(event.get("resent", 0))

    def _on_member_done(self, event: Mapping[str, Any]) -> None:
        self.results[str(event["member"])] = event["result"]

    def _on_run_done(self, event: Mapping[str, Any]) -> None:
        self.state = str(event["state"])

    def _points(
        self, what: tuple[tuple[str, str, str], ...], event: Mapping[str, Any], x: float
    ) -> None:
        for panel, name, key in what:
            value = event.get(key)
            if value is not None:
                self._point(panel, name, x, float(value))

    def _point(self, panel: str, name: str, x: float, y: float) -> None:
        self.curves.setdefault((panel, name), Curve()).add(x, y)
        self.news.append((panel, name, x, y))

    def take_news(self) -> list[tuple[str, str, float, float]]:
        """Points since the last call: (panel, curve, x, y)."""
        found, self.news = self.news, []
        return found

    @property
    def panels(self) -> list[str]:
        """In the order they are drawn; only those that have a curve."""
        order = [panel for panel, *_ in (*_STEP, *_EPOCH, *_LOOK)]
        present = {panel for panel, _ in self.curves}
        return [panel for panel in dict.fromkeys(order) if panel in present]
