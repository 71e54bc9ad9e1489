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
    """Run a test within this process, its ranks in threads; nightly in processes too."""
    if request.param == "here":
        request.getfixturevalue("inline_runs")
    return request.param


@pytest.fixture
def inline_runs():
    """Runs and their ranks go on within this process; `start` returns when a run has ended."""
    with runs_with_ranks() as (runs, ranks):
        yield WholeRuns(runs, ranks)


class WholeRuns:
    """Steer runs that go on within this process."""

    def __init__(self, runs, ranks):
        self.runs, self.ranks = runs, ranks

    def stop_when(self, condition):
        """Ask the run to stop once this is true of its folder."""
        self.runs.stop = condition

    def at_beat(self, look):
        """Call this in a rank's thread at each heartbeat, with (child, generation, step)."""
        self.ranks.on_beat = look

    def once(self, number, step, act):
        """Call `act(child)` once, in the thread of this rank, when it reaches this step."""
        done = []

        def look(child, generation, now):
            if child.number == number and now >= step and not done:
                done.append(child)
                act(child)

        self.at_beat(look)
