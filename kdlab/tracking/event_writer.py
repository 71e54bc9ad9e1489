"""Events of a folder to MLflow, one after another: what runs and sweeps have in common.

The position in events.jsonl is saved after every successful write. A crash in between
repeats a few writes with the same keys, steps and times, which MLflow stores once.
"""

import json
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from kdlab.config.home import write_json
from kdlab.train.events import EventReader

STATES = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
    "lost": "FAILED",
}


class EventWriter:
    """Call `step` until `done`. Raises whatever MLflow raises; nothing is lost by that.

    Each event goes to the method of its name: `_on_step` and so on; others are passed over.

    Args:
        folder: whose events.jsonl; what was written stands in its tracking.json.
        state: as it is before the first event.
        kind: "run" or "sweep", as its first and last event are named.
    """

    def __init__(self, folder: Path, state: dict[str, Any], kind: str) -> None:
        self.folder, self._begins, self._ends = folder, f"{kind}_started", f"{kind}_done"
        self.path = folder / "tracking.json"
        self.state: dict[str, Any] = {
            "offset": 0,  # in events.jsonl: all before it is in MLflow
            "off": False,  # nobody wants it tracked
            "done": False,
        } | state
        if self.path.exists():
            self.state |= json.loads(self.path.read_text())
        self.read = EventReader(folder / "events.jsonl", self.state["offset"])
        self._client: MlflowClient | None = None

    @property
    def done(self) -> bool:
        return bool(self.state["done"])

    def go_on(self) -> None:
        """What had ended was resumed: there are events after the end."""
        self.state["done"] = False

    @property
    def client(self) -> MlflowClient:
        if self._client is None:
            self._client = MlflowClient(tracking_uri=self.state["uri"])
        return self._client

    def step(self) -> int:
        """Write what is new; how many events that was."""
        before = self.read.offset
        events = self.read()
        try:
            for event in events:
                if event["event"] == self._begins:
                    self._turn_on_or_off(event["tracking_uri"])
                if self.state["off"]:
                    continue
                handle = getattr(self, f"_on_{event['event']}", None)
                if handle is not None:
                    handle(event)
            self.flush()
        except BaseException:
            self.read.offset = before  # the next try begins here again
            self.forget()
            raise
        if events:
            self.state["offset"] = self.read.offset
            self.save()
        return len(events)

    def _turn_on_or_off(self, uri: str | None) -> None:
        self.state |= {"off": uri is None, "done": uri is None}
        if uri is not None:
            self.state["uri"] = uri

    def is_over(self) -> bool:
        """Whether the last event is the end, written to MLflow or not."""
        tail = EventReader(self.read.path, self.read.offset)()
        return bool(tail) and tail[-1]["event"] == self._ends

    def save(self) -> None:
        write_json(self.path, self.state)

    def flush(self) -> None:
        """Write what was collected."""

    def forget(self) -> None:
        """What was collected will be read again."""
