"""The soak bench sees a leak and no noise, and a short one has figures of every process."""

import numpy as np
import pytest

from benchmarks import soak
from kdlab.errors import BadInput


def test_a_leak_is_told_from_noise():
    hours = np.linspace(0.1, 0.5, 200)
    noise = np.random.default_rng(0).normal(0, 0.5, 200)
    noise[50] = 300  # a burst
    assert abs(soak.slope(list(hours), list(100 + noise))) < 1
    assert soak.slope(list(hours), list(100 + noise + 5 * hours)) == pytest.approx(5, abs=1)


@pytest.mark.parametrize("override", ["minutes=0", "minutes=x", "seconds=3"])
def test_other_settings_are_refused(override):
    with pytest.raises(BadInput, match="minutes=NUMBER"):
        soak.measure([override])


@pytest.mark.slow
@pytest.mark.nightly
def test_every_process_of_a_served_run_is_looked_at(kdlab_home, elsewhere):
    values = {f["name"]: f["value"] for f in soak.measure(["minutes=0.5"])["figures"]}
    seen = {name.partition("/")[2] for name in values if name.startswith("mb_per_hour/")}
    assert {
        "run.process.child",
        "cluster.teachers.teacher_server",
        "cluster.reader.student_reader",
        "cluster.coordination.scheduler_process",
        "tracking.follow",
    } <= seen
    assert values["steps"] > 0
