"""Sweeps in processes of their own."""

import optuna
import pytest
from small_sweeps import searched

from kdlab.tuning import figures

optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture
def sweeps(kdlab_home, elsewhere):
    """Starts sweeps in an empty folder; whatever a failed test leaves is ended."""
    started = []

    def start(tree, study="small", **changes):
        sweep = searched(tree, **changes).start(study)
        started.append(sweep)
        return sweep

    yield start
    for sweep in started:
        sweep.kill()


@pytest.fixture
def no_pictures(elsewhere, monkeypatch):
    """An empty current folder; no picture is drawn, as that is most of a small sweep's time."""
    monkeypatch.setattr(figures, "draw", lambda study, spec, folder, emit: [])
    return elsewhere
