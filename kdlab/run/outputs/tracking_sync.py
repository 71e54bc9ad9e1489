"""`kdlab runs --sync`: writes to MLflow what it could not take during a run."""

from kdlab.config.home import runs_folder
from kdlab.events.log import EventLog, read_all
from kdlab.events.runs import RunDone
from kdlab.experiment import folder as folders
from kdlab.tracking.follow import sync


def sync_all() -> str:
    """Sync all runs and sweeps; return one line for each that had events to write."""
    lines = []
    for run in reversed(folders.all_folders()):
        state = str(run.status().state)
        if state in ("lost", "stopped"):  # killed before its last event
            _write_last_event(run, state)
        lines.append(_synced(run, run.run_id))
    for path in sorted((runs_folder() / "sweeps").glob("*/sweep.yaml")):
        sweep = folders.RunFolder(path.parent)
        lines.append(_synced(sweep, f"sweeps/{sweep.run_id}"))
    return "\n".join(filter(None, lines)) or "MLflow has everything."


def _synced(run: folders.RunFolder, name: str) -> str:
    """Sync one folder and return the outcome in words; empty where MLflow had all."""
    state = run.status().state
    if state in folders.UNDER_WAY:
        return f"{name}: is {state}; its own tracker writes"
    try:
        count = sync(run.path)
    except Exception as error:  # MLflow's, SQLAlchemy's or the system's
        return f"{name}: not written ({error}); try again later"
    return f"{name}: {count} events written" if count else ""


def _write_last_event(run: folders.RunFolder, state: str) -> None:
    # Warnings on MLflow may follow `run_done`.
    names = [e.facts()["event"] for e in read_all(run.events)]
    ends = [name for name in names if name in ("run_started", "run_done")]
    if names and ends[-1:] != ["run_done"]:
        log = EventLog(run.events)
        log.emit(RunDone(state=state, error="the run's process was killed"))
        log.close()
