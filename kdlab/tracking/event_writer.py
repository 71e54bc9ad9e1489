"""Write the events of a folder to MLflow: base class for runs and sweeps.

The position in events.jsonl is saved after every successful write. A crash in between
repeats a few writes with the same keys, steps and times, which MLflow stores once.
"""

from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from kdlab.config.home import read_object, write_json
from kdlab.events.event import Event
from kdlab.events.log import EventReader
from kdlab.events.runs import RunDone, RunStarted
from kdlab.events.sweeps import SweepDone, SweepStarted
from kdlab.tracking import store
from kdlab.tracking.in_mlflow import TRACKING, MlflowLocation
from kdlab.tracking.names import VIEW_SAVED, VIEW_TAG

STATES = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "lost": "FAILED"}


class EventWriter(ABC):
    """Writes events: call `step` until `done`. MLflow's errors are raised, and no event is lost.

    The folder's tracking.json records what was written; `state` holds its initial values.
    """

    def __init__(self, folder: Path, state: dict[str, Any]) -> None:
        self.folder = folder
        self.path = folder / TRACKING
        self.state: dict[str, Any] = {
            "offset": MlflowLocation.read(folder).offset,
            "off": False,  # tracking is turned off
            "done": False,
        } | state
        if self.path.exists():
            self.state |= read_object(self.path)
        self.read = EventReader(folder / "events.jsonl", self.state["offset"])
        self._client: MlflowClient | None = None

    @property
    def done(self) -> bool:
        return bool(self.state["done"])

    def resume(self) -> None:
        """Continue after the end: the run was resumed."""
        self.state["done"] = False

    @property
    def client(self) -> MlflowClient:
        if self._client is None:
            self._client = store.client(self.state["uri"])
        return self._client

    def step(self) -> int:
        """Write the new events and return their number."""
        before = self.read.lines.offset
        events = self.read()
        try:
            for event in events:
                if isinstance(event, RunStarted | SweepStarted):
                    self._turn_on_or_off(event.tracking_uri)
                if not self.state["off"]:
                    self.write(event)
            self.flush()
        except BaseException:
            self.read.lines.offset = before  # the next attempt begins here again
            self.discard()
            raise
        if events:
            self.state["offset"] = self.read.lines.offset
            self.save()
        return len(events)

    def _turn_on_or_off(self, uri: str | None) -> None:
        self.state |= {"off": uri is None, "done": uri is None}
        if uri is not None:
            self.state["uri"] = uri

    def has_ended(self) -> bool:
        """Return whether the last event ends the run, written to MLflow or not."""
        tail = EventReader(self.read.path, self.read.lines.offset)()
        return bool(tail) and isinstance(tail[-1], RunDone | SweepDone)

    @abstractmethod
    def write(self, event: Event) -> None:
        """Write one event; events without a place in MLflow are ignored."""

    def experiment(self, name: str) -> str:
        """Id of the experiment of this name; also sets kdlab's view of its runs."""
        experiment_id = store.experiment_id(self.client, name, self.state["uri"])
        with suppress(MlflowException):  # a server's experiments may belong to others
            self.client.set_experiment_tag(experiment_id, VIEW_TAG, VIEW_SAVED)
        self.state["view"] = True
        return experiment_id

    def create(self, event: Event, experiment: str, name: str, tags: dict[str, str]) -> str:
        """Create a run in MLflow that begins at this event; return its id."""
        begun = int(event.time * 1000)
        run = self.client.create_run(experiment, begun, tags, name)
        return str(run.info.run_id)

    def save(self) -> None:
        write_json(self.path, self.state)

    def flush(self) -> None:  # noqa: B027 - a writer that collects nothing needs none
        """Write the collected values."""

    def discard(self) -> None:  # noqa: B027
        """Drop the collected values, which will be read again."""
