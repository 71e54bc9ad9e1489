"""Write a sweep to MLflow: a run for it, with a child run for each trial and fresh seed.

The events of a trial that trains are written like those of any run; a simulated trial has values
alone. tracking.json records what was written, so that no write is repeated.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunTag

from kdlab.events.event import Event
from kdlab.events.sweeps import (
    RepeatDone,
    RepeatStarted,
    SweepDone,
    SweepStarted,
    TrialDone,
    TrialRequeued,
    TrialStarted,
)
from kdlab.tracking.event_writer import STATES, EventWriter
from kdlab.tracking.names import METRICS, metric, trial_name
from kdlab.tracking.store import cleaned
from kdlab.tracking.writer import Writer

_TRIALS = {"complete": "FINISHED", "pruned": "KILLED", "failed": "FAILED"}
_PARENT = "mlflow.parentRunId"


class SweepWriter(EventWriter):
    """Writes the events of a sweep, and of its trials that train."""

    def __init__(self, folder: Path) -> None:
        state: dict[str, Any] = {
            "run": None,
            "trials": {},  # number or folder -> run in MLflow, of those that have ended
            "open": {},  # number or folder -> folder and tags, of those under way
        }
        super().__init__(folder, state)
        self.state["done"] = False  # it may be resumed
        self.writers = {n: _writer(**facts) for n, facts in self.state["open"].items()}

    def step(self) -> int:
        for writer in self.writers.values():
            writer.step()
        return super().step()

    # Events

    def write(self, event: Event) -> None:
        match event:
            case SweepStarted():
                self._on_sweep_started(event)
            case TrialStarted(run=str(path)):
                self._on_trial_started(event, path)
            case RepeatStarted():
                self._on_repeat_started(event)
            case RepeatDone():
                self._on_repeat_done(event)
            case TrialDone():
                self._on_trial_done(event)
            case TrialRequeued():
                number = str(event.number)
                run = self.state["trials"].get(number) or self._close(number)
                if run is not None:
                    self.client.set_tag(run, "kdlab.trial.state", "tried again")
                    self.client.set_terminated(run, "KILLED", int(event.time * 1000))
            case SweepDone():
                self._on_sweep_done(event)

    def _on_sweep_started(self, event: SweepStarted) -> None:
        if self.state["run"] is not None:  # resumed
            self.client.update_run(self.state["run"], status="RUNNING")
            return
        self.state["experiment"] = self.experiment(event.group)
        tags = {
            "kdlab.sweep": event.study,
            "kdlab.spec_hash": event.spec_hash,
            "kdlab.version.optuna": event.optuna,
            "mlflow.source.name": f"kdlab sweep {event.sweep}",
            "mlflow.source.type": "JOB",
        }
        run = self.create(event, self.state["experiment"], event.study, tags)
        self.state["run"] = run
        self.save()
        spec = event.spec
        params = {
            "objectives": ", ".join(event.objectives),
            "sampler": spec["sampler"],
            "pruner": spec["pruner"],
            "of": spec["experiment"] or spec["simulation"],
            **{f"space/{key}": value for key, value in spec["space"].items()},
        }
        self.client.log_batch(
            self.state["run"],
            params=[Param(cleaned(k), str(_text(v))[:6000]) for k, v in params.items()],
        )
        self.client.log_artifact(self.state["run"], str(self.folder / "sweep.yaml"))

    def _on_trial_started(self, event: TrialStarted, path: str) -> None:
        number = str(event.number)
        tags = {"kdlab.trial": number, "kdlab.trial.why": str(event.why)}
        name = trial_name(event.number, event.values)
        self._open(number, path, tags | _set(event.values), name)

    def _on_repeat_started(self, event: RepeatStarted) -> None:
        tags = {"kdlab.confirms": event.setting, "kdlab.seed": str(event.seed)}
        setting = "confirmed best" if event.setting == "best" else "as it is, confirmed"
        self._open(
            event.run, event.run, tags | _set(event.set), f"{setting} · seed {event.seed}"
        )

    def _on_repeat_done(self, event: RepeatDone) -> None:
        run = self.state["trials"].get(event.run) or self._close(event.run)
        if run is not None and event.state != "finished":
            self.client.set_terminated(run, "FAILED", int(event.time * 1000))

    def _open(self, key: str, path: str, more_tags: Mapping[str, str], name: str) -> None:
        """Start writing the events of a training of the sweep, as a child of the sweep's run."""
        tags = {_PARENT: self.state["run"], "kdlab.sweep": self.folder.name, **more_tags}
        self.state["open"][key] = {"run": path, "tags": tags, "name": name}
        self.writers[key] = _writer(path, tags, name)

    def _on_trial_done(self, event: TrialDone) -> None:
        number = str(event.number)
        run = self.state["trials"].get(number)  # set where MLflow failed after this
        if run is None:
            run = self._add_simulated(event) if event.run is None else self._close(number)
        if run is None:  # it ended before its first event
            return
        self.state["trials"][number] = run
        self.client.set_tag(run, "kdlab.trial.state", event.state)
        results = event.values_found or {}
        # In the sweep's run over the number of the trial: the history of the search.
        for owner, step in ((run, 0), (self.state["run"], event.number)):
            values = [
                Metric(metric(k), float(v), int(event.time * 1000), step)
                for k, v in results.items()
                # Values that its training has written are not repeated.
                if v is not None and (owner != run or event.run is None or k not in METRICS)
            ]
            self.client.log_batch(owner, metrics=values)
        self.client.set_terminated(run, _TRIALS[event.state], int(event.time * 1000))

    def _close(self, number: str) -> str | None:
        """Write the remaining events of a training; return its run in MLflow."""
        writer = self.writers.get(number)
        if writer is None:
            return None
        writer.step()
        run: str | None = writer.state["runs"].get("")
        if run is not None:
            self.state["trials"][number] = run
        del self.writers[number], self.state["open"][number]
        return run

    def _add_simulated(self, event: TrialDone) -> str:
        tags = {_PARENT: self.state["run"], "kdlab.trial": str(event.number)}
        name = trial_name(event.number, event.set)
        run = self.create(event, self.state["experiment"], name, tags)
        params = [Param(cleaned(k), str(v)) for k, v in event.set.items()]
        if params:
            self.client.log_batch(run, params=params)
        return run

    def _on_sweep_done(self, event: SweepDone) -> None:
        run, result = self.state["run"], event.result
        if result:
            self._write_result(run, result, int(event.time * 1000))
        if event.error:
            self.client.set_tag(run, "kdlab.error", str(event.error)[:5000])
        self.client.set_terminated(run, STATES[event.state], int(event.time * 1000))
        self.state["done"] = True

    def _write_result(self, run: str, result: Mapping[str, Any], stamp: int) -> None:
        best = result["best"]
        metrics = [
            Metric(f"best/{k}", float(v), stamp, 0) for k, v in best["values"].items()
        ]
        confirmed = result["confirmed"]
        for who in ("best", "as_it_is"):
            mean = (confirmed or {}).get(who, {}).get("mean")
            if mean is not None:
                metrics.append(Metric(f"confirmed/{who}", float(mean), stamp, 0))
        tags = [RunTag(f"best/{cleaned(k)}", str(v)) for k, v in best["set"].items()]
        verdict = (result.get("verdict") or {}).get("sentence", "")
        tags += [RunTag("kdlab.verdict", verdict)] if verdict else []
        self.client.log_batch(run, metrics=metrics, tags=tags)
        for path in result["figures"]:
            self.client.log_artifact(run, path)
        for path in map(Path, result["saved"]):  # several share a name
            folder = path.parent.relative_to(self.folder)
            self.client.log_artifact(run, str(path), folder.as_posix())
        self.client.log_dict(run, result, "result.json")
        chosen = self.state["trials"].get(str(best["number"]))
        if chosen is not None:
            self.client.set_tag(chosen, "kdlab.best", "true")
        pictures = "\n\n".join(
            f"![{Path(p).stem}](get-artifact?path={Path(p).name}&run_uuid={run})"
            for p in result["figures"]
        )
        head = f"Best: trial {best['number']}, {_text(best['set'])}\n\n{verdict}\n\n"
        self.client.set_tag(run, "mlflow.note.content", head + pictures)


def _writer(run: str, tags: dict[str, str], name: str | None = None) -> Writer:
    return Writer(Path(run), tags, name, weights=False)


def _set(values: Mapping[str, object]) -> dict[str, str]:
    return {f"set/{cleaned(k)}": str(v) for k, v in values.items()}


def _text(value: Any) -> Any:
    """Mapping without unset values; any other value as it is."""
    if not isinstance(value, dict):
        return value
    return {k: v for k, v in value.items() if v not in (None, False, {}, [])}
