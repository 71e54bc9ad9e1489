"""Run after run of each kind while others try to get in: what one run in twenty lets in."""

import os
import sys
import time

import pytest
from strangers import (
    KINDS,
    SAME_EACH_TIME,
    Thief,
    begun,
    mlflow_pages,
    ports_of,
    students_of,
    tree_of,
)

from kdlab.events.log import select

pytestmark = [
    pytest.mark.slow("run after run under attack"),
    pytest.mark.nightly,
    pytest.mark.timeout(3600),
]
RUNS = int(os.environ.get("FAULTS", "30")) // 10  # `make nightly`: 20
EPOCHS = {"served": 20, "ranks": 3, "pipeline": 4, "ensemble": 2, "remote": 20, "sweep": 4}


@pytest.mark.parametrize("kind", [*KINDS, "ui"])
def test_run_after_run_nobody_gets_in(
    kind, strangers, kdlab_home, elsewhere, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("pool")
    expected = quiet(kind, folder) if kind in SAME_EACH_TIME else None
    assert expected != {}
    stranger, thief, begin, replaced = strangers(), Thief(), time.monotonic(), 0
    for number in range(RUNS):
        if kind == "ui":
            with mlflow_pages() as server:
                for port, pid, _ in ports_of(tree_of(server.pid)):
                    stranger.attack(port, pid, f"{kind} {number}")
            continue
        with begun(kind, EPOCHS[kind], folder) as attacked:
            attacked.attacked_until_its_end(stranger)
            attacked.complete()
        replaced += sum(1 for _ in select(attacked.run.folder.events, "rank_hangs"))
        assert expected in (None, students_of(attacked.run))
    let_in, seconds = thief.end(), time.monotonic() - begin
    sys.stdout.write(
        f"{kind}: {RUNS} runs in {seconds:.0f} s, {stranger.attempts} attempts, "
        f"{let_in} connections of the thief, {replaced} ranks replaced, "
        f"{len(stranger.breaches)} breaches\n"
    )
    assert stranger.breaches == []
    assert let_in or kind == "ensemble"  # which listens nowhere


def quiet(kind, folder):
    """The students of a run that nobody attacks."""
    with begun(kind, EPOCHS[kind], folder) as undisturbed:
        undisturbed.complete()
    return students_of(undisturbed.run)
