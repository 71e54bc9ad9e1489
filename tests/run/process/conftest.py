import pytest
from runs_here import RunsHere


@pytest.fixture
def runs(elsewhere, monkeypatch):
    """Execute runs in this process; each asks `runs.stop` whether it is to end."""
    spawn = RunsHere(monkeypatch)
    monkeypatch.setattr("kdlab.run.handle.run.spawn", spawn)
    return spawn
