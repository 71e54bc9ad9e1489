import json

import pytest
from threaded_ranks import runs_with_ranks


@pytest.fixture
def run_json(kdlab_cli):
    """`kdlab run --json`, which must end with one JSON object on one line."""

    def call(*words):
        code, out, err = kdlab_cli("run", *words, "--json")
        assert code == 0, err
        return json.loads(out.strip().split("\n")[-1])

    return call


@pytest.fixture
def answer(kdlab_cli):
    """The object that a command ends with."""

    def ask(*words):
        code, out, err = kdlab_cli(*words, "--json")
        assert code == 0, err
        return json.loads(out.splitlines()[-1])

    return ask


@pytest.fixture(
    params=[
        pytest.param(
            "here", marks=pytest.mark.processes("a whole run, within this process")
        ),
        pytest.param("processes", marks=pytest.mark.nightly),
    ]
)
def wherever(request):
    """A test of a whole run that is done here, its ranks in threads; nightly in processes."""
    if request.param == "here":
        request.getfixturevalue("here")
    return request.param


@pytest.fixture
def here():
    """Runs are done within this process, and return when they have ended; so are their ranks."""
    with runs_with_ranks() as made:
        yield WholeRuns(*made)


class WholeRuns:
    """What a test says of runs that are done here."""

    def __init__(self, runs, ranks):
        self.runs, self.ranks = runs, ranks

    def stop_when(self, condition):
        """The run is asked to stop once this is true of its folder."""
        self.runs.stop = condition

    def at_beat(self, look):
        """Called in a rank's thread at each sign of life: (child, generation, step)."""
        self.ranks.on_beat = look

    def once(self, number, step, act):
        """`act(child)` in the process that is this rank, at the first sign of this step."""
        done = []

        def look(child, generation, now):
            if child.number == number and now >= step and not done:
                done.append(child)
                act(child)

        self.at_beat(look)
