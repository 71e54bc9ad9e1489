"""docs/json.md names keys that the answers of commands have."""

from dataclasses import fields

import pytest
from tests_support import documented

from kdlab.report.figures import Figure, Report
from kdlab.run.estimate import Estimate, StageEstimate
from kdlab.tuning.outcome import SweepOutcome


def names(dataclass):
    return {field.name for field in fields(dataclass)}


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("kdlab sweep NAME --json", names(SweepOutcome)),
        (
            "kdlab run CONFIG --dry-run",
            names(Estimate) | names(StageEstimate) | {"seconds"},
        ),
        ("kdlab bench NAME", set(Report.__annotations__) | set(Figure.__annotations__)),
    ],
)
def test_keys_of_the_page_are_fields(command, keys):
    assert documented(command) <= keys | {"checks"}


def test_check_has_the_keys_of_the_page(kdlab_home, answer):
    assert set(answer("show", "KD-D01")) == documented("kdlab show KD-D01")


def test_dry_run_of_a_sweep_has_the_keys_of_the_page(kdlab_home, answer):
    facts = answer("sweep", "quickstart", "--dry-run", "--trials", "3")
    assert set(facts) == documented("kdlab sweep NAME --dry-run")
    assert facts["trials"] == 3
    assert not list(kdlab_home.rglob("sweeps"))  # nothing was started


@pytest.mark.long
def test_list_of_reproductions_is_an_object(kdlab_home, answer):
    """It was a table on stdout, where scripts read JSON."""
    listing = answer("reproduce")
    assert set(listing) == documented("kdlab reproduce --json")
    assert "edl_dist/table3" in listing["known"]


@pytest.mark.long
def test_doctor_answers_an_array(kdlab_home, answer):
    assert {"what", "state", "found", "advice"} == set(answer("doctor")[0])
