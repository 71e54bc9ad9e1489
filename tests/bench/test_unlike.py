"""Two ranks, one of which gets the processor for a part of the time."""

import pytest

from kdlab.bench import unlike


@pytest.mark.slow
def test_a_slower_rank_gets_fewer_rows_when_speed_is_measured(
    kdlab_home, elsewhere, monkeypatch
):
    # So slow, in periods so long, that no other noise of the machine is like it.
    monkeypatch.setattr(unlike, "SPEED", 0.2)
    monkeypatch.setattr(unlike, "_PERIOD_S", 0.05)
    monkeypatch.setattr(unlike, "_TIMED_STEPS", 20)  # no rate is asserted
    found = {f["name"]: f["value"] for f in unlike.measure(repeats=1)["figures"]}
    for source in ("n_training", "served"):
        assert found[f"slow_rank_rows/equal/{source}"] == 0.5
        assert 0 < found[f"slow_rank_rows/measured/{source}"] < 0.5
        for shares in ("equal", "measured"):
            both = found[f"over_fast_alone/{shares}/{source}"]
            ideal = found[f"of_both_together/{shares}/{source}"]
            assert ideal == pytest.approx(both / (1 + unlike.SPEED))
    assert not list((elsewhere / "runs").glob("*"))  # they were somewhere else
