"""Teachers that choose what computes: real processes, and nothing is lost."""

import pytest

import kdlab
from kdlab.events.log import select
from kdlab.events.teachers import TeacherJoined


@pytest.mark.slow
@pytest.mark.processes
def test_a_student_learns_from_teachers_that_chose_their_engine(kdlab_home, elsewhere):
    words = ("teacher_pool.engine=auto", "tracking.enabled=false")
    run = kdlab.load("smoke/served", *words).start(lambda line: None).wait(timeout_s=600)
    result = run.result
    assert result["samples_lost"] == result["samples_repeated"] == 0
    engines = result["teacher_engines"]
    assert engines
    assert all(name.rsplit(" ", 1)[1] in {"fp32", "bf16"} for name in engines)
    joined = list(select(run.folder.events, TeacherJoined))
    assert joined
    assert all("times eager" in str(event["engine"]) for event in joined)
    assert all("folded fp32" in str(event["engine"]) for event in joined)  # was tried
