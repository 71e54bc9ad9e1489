import pytest
from runs_here import RunsHere


@pytest.fixture
def here(elsewhere, monkeypatch):
    """Runs are done in this process; `here.stop` is asked whether one is to end."""
    made = RunsHere(monkeypatch)
    monkeypatch.setattr("kdlab.run.handle.run.spawn", made)
    return made
