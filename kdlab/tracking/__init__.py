"""MLflow, fed from a run's events by a process of its own.

Tracking can therefore never stop or slow a training, and what could not be written stays
in the events until it can: `kdlab runs --sync` goes on where writing stopped.
"""

UI_TOKEN = "KDLAB_UI_TOKEN"  # variable with what the guarded UI asks for
