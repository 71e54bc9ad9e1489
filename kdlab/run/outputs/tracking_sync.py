"""`kdlab runs --sync`: what MLflow could not take during a run is written now."""

from kdlab.config.home import runs_folder
from kdlab.events.log import EventLog, read_all
from kdlab.events.runs import RunDone
from kdlab.experiment import folder as folders
from kdlab.tracking.follow import sync


def sync_all() -> str:
    """Go over all runs and sweeps; one line for each that had something to write."""
    lines = []
    for run in reversed(folders.all_folders()):
        state = str(run.status().state)
        if state in ("lost", "stopped"):  # killed: nobody wrote its last event
            _tell_the_end(run, state)
        lines.append(_synced(run, run.run_id))
    for path in sorted((runs_folder() / "sweeps").glob("*/sweep.yaml")):
        sweep = folders.RunFolder(path.parent)
        lines.append(_synced(sweep, f"sweeps/{sweep.run_id}"))
    return "\n".join(filter(None, lines)) or "MLflow has everything."


def _synced(run: folders.RunFolder, name: str) -> str:
    """What there is to say of it; empty where MLflow had all."""
    state = run.status().state
    if state in folders.UNDER_WAY:
        return f"{name}: is {state}; its own tracker writes"
    try:
        count = sync(run.path)
    except Exception as error:  # MLflow's, SQLAlchemy's or the system's
        return f"{name}: not written ({error}); try again later"
    return f"{name}: {count} events written" if count else ""


def _tell_the_end(run: folders.RunFolder, state: str) -> None:
    # What MLflow has to say may come after it.
    said = [e.facts()["event"] for e in read_all(run.events)]
    ends = [name for name in said if name in ("run_started", "run_done")]
    if said and ends[-1:] != ["run_done"]:
        log = EventLog(run.events)
        log.emit(RunDone(state=state, error="the run's process was killed"))
        log.close()
