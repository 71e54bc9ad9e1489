"""Two ranks, one of which gets the processor for a part of the time."""

import pytest

from kdlab.bench import unlike


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_measured_shares_are_faster_than_equal_ones(kdlab_home, elsewhere):
    found = {f["name"]: f["value"] for f in unlike.measure(repeats=1)["figures"]}
    for source in ("n_training", "served"):
        equal = found[f"over_fast_alone/equal/{source}"]
        assert found[f"over_fast_alone/measured/{source}"] > equal
        assert found[f"samples_per_second/alone/{source}"] > 0
    assert not list((elsewhere / "runs").glob("*"))  # they were somewhere else
