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
def here(elsewhere, monkeypatch):
    """An empty folder; no picture is drawn, which is most of what a small sweep takes."""
    monkeypatch.setattr(figures, "draw", lambda study, spec, folder, emit: [])
    return elsewhere
