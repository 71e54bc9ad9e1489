"""Every test has a kdlab home shared by the session and run folders of its own."""

import os

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# On a developer's machine every run tries new examples; CI tries the same ones each time,
# so that a landing does not fail for what it did not change.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session", autouse=True)
def kdlab_home(tmp_path_factory):
    """Decoded data and prepared teachers are made once per session."""
    home = tmp_path_factory.mktemp("kdlab-home")
    os.environ["KDLAB_HOME"] = str(home)
    os.environ.pop("KDLAB_RUNS", None)
    return home


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A current folder with nothing in it: configs and cards come from kdlab's own.

    A run that a failed test has left there is ended.
    """
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    left = [p for p in (tmp_path / "runs").glob("*") if (p / "status.json").is_file()]
    if left:
        from kdlab.run.folder import RunFolder
        from kdlab.run.handle import Run

        for path in left:
            Run(RunFolder(path)).kill()


@pytest.fixture(scope="session")
def digits():
    """(data, spec) of the small digits set."""
    from kdlab.config.check import construct
    from kdlab.config.load import compose_card
    from kdlab.data.images import DataSpec

    spec = construct(DataSpec, compose_card("data/digits_tiny"))
    return spec.load(), spec


@pytest.fixture
def samples(digits):
    """Three epochs of batches of 50."""
    from kdlab.data.samples import planned

    data, spec = digits
    return planned(data, spec.to_dict(), batch=50, seed=3, epochs=3)
