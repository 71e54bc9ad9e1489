"""EDL-Dist's hardware tables, on whatever this machine has."""

import pytest

from benchmarks import heterogeneous
from kdlab.errors import BadInput, SpecError

SMALL = (
    "size=8",
    "batch=16",
    "device=cpu",
    "student.cores=[1, 4096]",
    "teacher.cores=[1, 4096]",
    "student.model={type: models/patch_net, patch: 4, width: 16}",
    "teacher.model={type: models/patch_net, patch: 4, width: 32}",
)


@pytest.mark.slow
@pytest.mark.nightly
def test_both_tables_without_a_gpu(monkeypatch):
    monkeypatch.setattr(heterogeneous, "_TIMED_S", 0.3)
    said = []
    found = heterogeneous.measure(repeats=1, say=said.append, overrides=SMALL)
    values = {f["name"]: f["value"] for f in found["figures"]}
    for row in ("student_cores/1", "teacher_cores/1"):
        for name in ("n_training", "online", "edl_dist"):
            assert values[f"samples_per_second/{name}/{row}"] > 0
        assert values[f"edl_dist_over_online/{row}"] > 0
    assert sum("left out" in line for line in said) == 2  # nobody has 4096 cores


def test_without_a_gpu_it_says_what_to_do(monkeypatch):
    monkeypatch.setattr(heterogeneous.torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match=r"device=cpu"):
        heterogeneous.measure()
    with pytest.raises(SpecError, match=r"student\.cores"):
        heterogeneous.measure(overrides=["student.cores=[0]"])
