"""MLflow, fed from a run's events by a process of its own.

Tracking can therefore never stop or slow a training, and what could not be written stays
in the events until it can: `kdlab runs --sync` goes on where writing stopped.
"""

from pathlib import Path

from kdlab.config.home import home

# Variables with what the guarded UI knows: what scripts say, what lets one browser in, once, and
# the name that the browser calls it by.
UI_TOKEN, UI_ONCE, UI_HOST = "KDLAB_UI_TOKEN", "KDLAB_UI_ONCE", "KDLAB_UI_HOST"

# The view of its runs that each experiment in MLflow has, by what is in an address of it.
VIEW = "kdlab"

# `tracking` in the status of what has ended and waits for MLflow; it stays if that is killed.
PENDING = "MLflow has not got all of it; `kdlab runs --sync` writes the rest"


def ui_note() -> Path:
    """The file with the address of the UI that is up, of this user alone."""
    return home() / "ui.address"


def ui_address() -> str:
    """Where the UI is now, for links; where none is up, where one comes up by itself."""
    try:
        return ui_note().read_text(encoding="utf-8")
    except FileNotFoundError:
        return "http://127.0.0.1:5000"
