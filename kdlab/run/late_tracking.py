"""`kdlab runs --sync`: what MLflow could not take during a run is written now."""

from kdlab.run import folder as folders


def sync_all() -> str:
    """Go over all runs; one line for each that had something to write."""
    from kdlab.tracking.sync import sync

    lines = []
    for run in reversed(folders.all_folders()):
        state = run.status().get("state")
        if state in ("starting", "running"):
            lines.append(f"{run.run_id}: is {state}; its own tracker writes")
            continue
        if state == "lost":  # killed: nobody wrote its last event
            _tell_the_end(run)
        try:
            count = sync(run.path)
        except Exception as error:  # MLflow's, SQLAlchemy's or the system's
            lines.append(f"{run.run_id}: not written ({error}); try again later")
            continue
        if count:
            lines.append(f"{run.run_id}: {count} events written")
    return "\n".join(lines) or "MLflow has everything."


def _tell_the_end(run: folders.RunFolder) -> None:
    from kdlab.train.events import EventLog, read_all

    events = read_all(run.events)
    if events and events[-1]["event"] != "run_done":
        log = EventLog(run.events)
        log.emit("run_done", state="lost", error="the run's process was killed")
        log.close()
