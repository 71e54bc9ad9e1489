"""MLflow tracking: a separate process writes a run's events to MLflow.

So tracking never stops or slows a training. Events that could not be written stay in the
log: `kdlab runs --sync` continues where writing stopped.
"""

from pathlib import Path

from kdlab.config.home import home

# Environment variables of the guarded UI: token of scripts, token that admits one browser once,
# and the host name of the UI.
UI_TOKEN, UI_ONCE, UI_HOST = "KDLAB_UI_TOKEN", "KDLAB_UI_ONCE", "KDLAB_UI_HOST"

# Name of the shared view of runs that each experiment has, in its URL.
VIEW = "kdlab"

# `tracking` in the status of an ended run that waits for MLflow; it stays if the writer is killed.
PENDING = "not all events are in MLflow; `kdlab runs --sync` writes the rest"


def ui_note() -> Path:
    """The file with the address of the running UI, readable by this user alone."""
    return home() / "ui.address"


def ui_address() -> str:
    """Address of the running UI, for links; the default address where none runs."""
    try:
        return ui_note().read_text(encoding="utf-8")
    except FileNotFoundError:
        return "http://127.0.0.1:5000"
