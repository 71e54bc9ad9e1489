"""Others on the same machine try every port, file and process of every kind of run."""

import pytest
from strangers import (
    KINDS,
    NOBODY,
    SAME_EACH_TIME,
    begun,
    mlflow_pages,
    ports_of,
    students_of,
    tree_of,
)

from kdlab.run import port_audit

pytestmark = pytest.mark.slow(
    "every port of every kind of run is tried, and the run is real"
)

MOST_MB = 100
EPOCHS = {
    "served": 100,
    "ranks": 12,
    "pipeline": 20,
    "ensemble": 6,
    "remote": 100,
    "sweep": 25,
}
# Of a remote pool the teachers: its scheduler calls itself by its address where it can.
SERVES = {"teacher_server", "scheduler_process"}
PROGRAMS = {"served": SERVES, "ranks": {"rank"}, "pipeline": {"rank"}, "ensemble": {""},
            "remote": {"kdlab"}, "sweep": SERVES}  # fmt: skip
# Another user; and the same one, who knows no secret: a program that was tricked.
USERS = {"served": (NOBODY, None)}


@pytest.mark.parametrize("kind", KINDS)
def test_no_stranger_gets_into_a_run(
    kind, strangers, thief, kdlab_home, elsewhere, tmp_path_factory
):
    """Trials of a sweep share a pool; local models of an ensemble do not listen."""
    attackers = [strangers(user) for user in USERS.get(kind, (NOBODY,))]
    folder = tmp_path_factory.mktemp("pool")
    with begun(kind, EPOCHS[kind], folder) as attacked:
        most = attacked.attacked_until_its_end(*attackers)
        attacked.complete()
        attacked.attacked_after_its_end(*attackers)
    for stranger in attackers:
        assert stranger.breaches == []
        tried = {name.rpartition(".")[2] for name in stranger.programs}
        assert tried >= PROGRAMS[kind]
    assert most < MOST_MB * 2**20
    assert thief.end() or kind == "ensemble"  # which listens nowhere
    if kind in SAME_EACH_TIME:
        with begun(kind, EPOCHS[kind], folder) as quiet:
            quiet.complete()
        assert students_of(attacked.run) == students_of(quiet.run) != {}


def test_no_stranger_gets_into_mlflow(strangers, thief, kdlab_home, elsewhere):
    stranger = strangers()
    with mlflow_pages() as server:
        for listens, pid, words in ports_of(tree_of(server.pid)):
            stranger.attack(listens, pid, port_audit.program_of(words))
    assert stranger.attempts > 100
    assert stranger.breaches == []
    assert thief.end()
