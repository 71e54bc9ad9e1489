"""Two ranks, one of which gets the processor for a part of the time."""

import pytest

from benchmarks import unlike


@pytest.mark.slow
@pytest.mark.nightly
def test_it_trains_with_equal_and_with_measured_shares(kdlab_home, elsewhere, monkeypatch):
    monkeypatch.setattr(unlike, "_TIMED_STEPS", 20)  # no rate is asserted
    values = {f["name"]: f["value"] for f in unlike.measure(repeats=1)["figures"]}
    for source in ("n_training", "served"):
        assert values[f"slow_rank_rows/equal/{source}"] == 0.5
        # How many is for tests/papers/test_shares.py: here the machine's noise decides too.
        assert 0 < values[f"slow_rank_rows/measured/{source}"] < 1
        for shares in ("equal", "measured"):
            both = values[f"over_fast_alone/{shares}/{source}"]
            ideal = values[f"of_both_together/{shares}/{source}"]
            assert ideal == pytest.approx(both / (1 + unlike.SPEED))
    assert not list((elsewhere / "runs").glob("*"))  # they were somewhere else
