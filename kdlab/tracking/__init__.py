"""MLflow, fed from a run's events by a process of its own.

Tracking can therefore never stop or slow a training, and what could not be written stays
in the events until it can: `kdlab runs --sync` goes on where writing stopped.
"""

# Variables with what the guarded UI knows: what scripts say, what lets one browser in, once, and
# the name that the browser calls it by.
UI_TOKEN, UI_ONCE, UI_HOST = "KDLAB_UI_TOKEN", "KDLAB_UI_ONCE", "KDLAB_UI_HOST"

# `tracking` in the status of what has ended and waits for MLflow; it stays if that is killed.
PENDING = "MLflow has not got all of it; `kdlab runs --sync` writes the rest"
