"""One student: what its spec may say, and how its ranks are started."""

from contextlib import nullcontext

import pytest

import kdlab
from kdlab.changes.change import CONTROL, Scale, append
from kdlab.config.home import write_json
from kdlab.errors import SpecError
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.method import MemberTraining
from kdlab.methods.student import method as student
from kdlab.methods.student.method import StudentMethod
from kdlab.soft_labels.in_process import InProcess
from kdlab.soft_labels.none import NoTeacher

GROUP = "aggregation.type=train/aggregation/all_reduce"


def spec_of(*words, name="smoke/none"):
    return kdlab.load(name, *words).spec


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.batch=7", GROUP, "aggregation.ranks=4"], "needs batches of at least 8"),
        (["aggregation={type: train/aggregation/easgd}"], "is of several local models"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(elsewhere, words, message):
    with pytest.raises(SpecError) as refused:
        spec_of(*words)
    assert message in str(refused.value)


def test_sources_are_compared_by_their_short_names(elsewhere):
    method = StudentMethod()
    assert list(method.compared(spec_of())) == ["none"]
    several = spec_of("compare=[in_process, none]")
    assert method.compared(several) == {"in_process": InProcess(), "none": NoTeacher()}


def test_a_teacher_that_is_named_is_used(elsewhere):
    method = StudentMethod()
    assert method.default_source(spec_of()) == InProcess()
    assert method.default_source(spec_of("teacher=null")) == NoTeacher()


def test_only_a_group_has_ranks(elsewhere):
    method = StudentMethod()
    assert not method.has_ranks(spec_of())
    assert method.has_ranks(spec_of(GROUP))


class Setup:
    stop = staticmethod(lambda: False)

    def __init__(self, spec):
        self.spec = spec


def training(tmp_path, spec, **more):
    run = RunFolder(tmp_path)
    member = spec.members()[0]
    return MemberTraining(
        setup=Setup(spec), member=member, run=run, folder=run.member(member.name),
        emit=lambda event: None, pools=None, hosts=None,
        chaos=lambda pool, targets: nullcontext(targets()), **more,
    )  # fmt: skip


def test_a_group_is_as_the_aggregation_says(elsewhere, tmp_path):
    spec = spec_of(
        GROUP, "aggregation.ranks=3", "aggregation.least=2", "aggregation.standby=0",
        "aggregation.replace_lost=false", "aggregation.hang_s=7",
    )  # fmt: skip
    group_training = training(tmp_path, spec)
    group = student._group(group_training)
    machine = group.machine
    assert (machine.wanted, machine.least, machine.standby) == (3, 2, 0)
    assert not machine.replace
    assert group.hang_s == 7
    assert group.wanted() is None
    # A requested number of ranks holds in this session and in the next one.
    (group_training.run.path / CONTROL).write_text(
        '{"event": "pa'
    )  # a torn line takes no other with it
    append(group_training.run.path, Scale(time=1.0, member="none/seed0", ranks=4))
    assert group.wanted() == 4
    assert student._group(group_training).machine.wanted == 4


def test_ranks_that_an_earlier_kdlab_was_asked_for_hold(elsewhere, tmp_path):
    group_training = training(tmp_path, spec_of(GROUP, "aggregation.ranks=3"))
    write_json(group_training.run.path / "ranks.json", {"ranks": 2})
    assert student._group(group_training).machine.wanted == 2
    append(group_training.run.path, Scale(time=1.0, member="", ranks=5))
    assert student._group(group_training).machine.wanted == 5
