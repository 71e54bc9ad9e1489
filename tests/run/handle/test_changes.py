"""Changes of a run: what can be set and what is refused, judged by its folder."""

import json

import pytest

import kdlab
from kdlab.changes.change import CONTROL, ChangeReader, Pause, SetValues
from kdlab.changes.queue import ChangeQueue
from kdlab.codec import MessageError, to_builtins
from kdlab.config.home import write_json
from kdlab.errors import BadInput, SpecError
from kdlab.events.log import EventLog, MemberLog
from kdlab.events.runs import MemberDone, MemberStarted
from kdlab.events.teachers import PoolReady
from kdlab.experiment.folder import RunFolder
from kdlab.run.handle.changes import check_values, scale, send, tunables
from kdlab.run.handle.run import Run, create_folder

POOL = "teacher_pool={type: cluster/local_pool, teachers: 2, engine: eager}"
DEPLOYED = (
    "teacher_pool={type: cluster/deployed_pool, machines: {type: cluster/deployers/local}}"
)


@pytest.fixture
def folder(elsewhere):
    """Make the folder of a run that trains, as its process leaves it meanwhile."""

    def make(name, *overrides, trains=True):
        experiment = kdlab.load(f"smoke/{name}", *overrides)
        run, _ = create_folder(experiment, "running")
        spec = experiment.spec
        written = {m.name: spec.method.tunables(spec, m.source) for m in spec.members()}
        write_json(run.tunables, to_builtins(written))
        if trains:
            begins(run, spec.members()[0].name)
        return run

    return make


def begins(run, member):
    log = EventLog(run.events)
    MemberLog(log, member).emit(MemberStarted(source="none", seed=0))
    log.close()


def ends(run, member):
    log = EventLog(run.events)
    MemberLog(log, member).emit(MemberDone(result={}, artifacts=[]))
    log.close()


def values(run):
    return {one.name: one.value for one in tunables(run)}


def test_what_can_be_set_depends_on_who_trains(folder):
    run = folder("served", "compare=[none, served]", "loss.temperature=3.0")
    assert values(run) == {"lr_factor": 1.0}  # none/seed0 has no teacher
    ends(run, "none/seed0")
    begins(run, "served/seed0")
    assert values(run) == {
        "lr_factor": 1.0, "loss.hard_weight": 0.5, "loss.soft_weight": 0.5,
        "loss.temperature": 3.0, "loss.warm_up_epochs": 0.0,
        "soft_labels.lt": 64, "soft_labels.ut": 512,
    }  # fmt: skip


def test_what_was_set_is_shown_and_holds_for_its_member_alone(folder):
    run = folder("in_process", "seeds=[0, 1]")
    send(run, SetValues, set={"loss.temperature": 2.0})
    send(run, SetValues, set={"loss.temperature": 1.5, "lr_factor": 0.5})
    send(run, Pause)
    assert values(run)["loss.temperature"] == 1.5
    assert values(run)["lr_factor"] == 0.5
    ends(run, "in_process/seed0")
    begins(run, "in_process/seed1")
    assert values(run)["loss.temperature"] == 4.0
    assert Run(run).tunables() == tunables(run)
    with pytest.warns(DeprecationWarning, match=r"called Run\.tunables"):
        assert Run(run).knobs() == tunables(run)


def test_before_it_has_begun_there_is_nothing_to_set(folder):
    run = folder("none", trains=False)
    assert values(run) == {"lr_factor": 1.0}  # those of the first that will train
    run.tunables.unlink()
    assert tunables(run) == []


def test_what_the_run_wrote_down_may_be_damaged_or_of_another_kdlab(folder):
    run = folder("none")
    run.tunables.write_text("{")
    with pytest.raises(
        MessageError, match=r"cannot be read: .* The run itself goes on"
    ) as refused:
        tunables(run)
    assert "knobs.json cannot be read: " in str(refused.value)
    run.tunables.write_text(
        json.dumps({"none/seed0": [{"name": "lr_factor", "colour": 1}]})
    )
    with pytest.raises(MessageError):
        tunables(run)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"loss.temperature": 0.0}, "must be > 0"),
        (
            {"loss.temp": 3.0},
            "cannot be set during a run. Nearest: loss.temperature",
        ),
        ({"lr_factor": 0.0}, "must be > 0"),
        ({"lr_factor": 101.0}, "must be <= 100"),
        ({"loss.hard_weight": float("nan")}, "finite"),
        ({"train.lr": 1.0}, "cannot be set"),
        ({"self": 1.0}, "self"),
        ({"lr_factor": True}, "lr_factor is True; it must be a number"),
        ({"lr_factor": "half"}, "lr_factor is 'half'; it must be a number"),
        ({"soft_labels.lt": 512}, "is 512 and soft_labels.ut 512; it must be less"),
        ({"soft_labels.ut": 64}, "is 64 and soft_labels.ut 64; it must be less"),
    ],
)
def test_bad_values_are_refused_before_they_are_sent(folder, asked, words):
    run = folder("served")
    with pytest.raises((BadInput, SpecError)) as refused:
        Run(run).set(**asked)
    assert words in str(refused.value)
    assert not (run.path / CONTROL).exists()


def test_both_thresholds_are_judged_together(folder):
    run = folder("served")
    check_values(run, {"soft_labels.lt": 600, "soft_labels.ut": 700})
    send(run, SetValues, set={"soft_labels.ut": 700})
    check_values(run, {"soft_labels.lt": 600})  # what was set before counts


def test_a_loss_with_rules_of_its_own_is_asked(folder):
    """Its field has no range, and `cross_faults` does."""
    run = folder("in_process", "loss={type: losses/sum, parts: [{type: losses/hinton}]}")
    free = {one.name: one.free for one in tunables(run)}
    of_loss = dict.fromkeys(["hard_weight", "soft_weight", "warm_up_epochs"], False)
    assert free == {"lr_factor": True} | {
        f"loss.{name}": no for name, no in of_loss.items()
    }
    check_values(run, {"loss.soft_weight": 2.0})
    with pytest.raises(SpecError, match=r"loss\.soft_weight: is -1, must be >= 0"):
        check_values(run, {"loss.soft_weight": -1.0})


# What is sent


def read_changes(run):
    return ChangeReader(run.path / CONTROL)()


def test_changes_are_for_the_member_that_trains_now(folder):
    run = folder("none", "seeds=[0, 1]")
    handle = Run(run)
    handle.pause()
    ends(run, "none/seed0")
    begins(run, "none/seed1")
    handle.go_on()
    handle.checkpoint()
    handle.set(lr_factor=0.5)
    changes = read_changes(run)
    assert [(change.KIND, change.member) for change in changes] == [
        ("pause", "none/seed0"), ("go_on", "none/seed1"),
        ("checkpoint", "none/seed1"), ("set", "none/seed1"),
    ]  # fmt: skip
    assert changes[-1].set == {"lr_factor": 0.5}


def test_between_two_trainings_it_cannot_be_changed(folder):
    run = folder("none", trains=False)
    with pytest.raises(BadInput, match="does not train its student at the moment"):
        Run(run).pause()
    begins(run, "none/seed0")
    ends(run, "none/seed0")
    with pytest.raises(BadInput, match="at the moment"):
        Run(run).set(lr_factor=0.5)
    assert read_changes(run) == []


@pytest.mark.parametrize("state", ["finished", "failed", "stopped", "lost"])
def test_only_a_running_one_can_be_changed(folder, state):
    run = folder("none")
    run.write_status(state=state, result={})
    with pytest.raises(BadInput, match=f"is {state}; only a running one can be changed"):
        Run(run).pause()


@pytest.mark.parametrize("pool", [POOL, DEPLOYED], ids=("local", "deployed"))
def test_teachers_come_and_go_where_the_run_has_started_them(folder, pool):
    run = folder("served", pool)
    handle = Run(run)
    with pytest.raises(BadInput, match="no teachers of its own"):
        handle.add_teacher()  # they are not up yet
    log = EventLog(run.events)
    log.emit(PoolReady(address="tcp://127.0.0.1:1", teachers=[]))
    handle.add_teacher()
    handle.drain_teacher("teacher-0")
    handle.kill_teacher("teacher-1")
    with pytest.raises(BadInput, match="drain_teacher needs the name of a teacher"):
        handle.drain_teacher("")
    add, drain, kill = read_changes(run)
    assert (add.KIND, drain.KIND, drain.name) == (
        "add_teacher",
        "drain_teacher",
        "teacher-0",
    )
    assert (kill.KIND, kill.name) == ("kill_teacher", "teacher-1")


@pytest.mark.parametrize("pool", ["cluster/remote_pool", None])
def test_teachers_of_others_are_left_alone(folder, pool):
    words = f"teacher_pool={{type: {pool}, address: 'tcp://10.0.0.1:1', insecure: true}}"
    run = folder("served", words) if pool else folder("none")
    if pool:  # one of its own would have to be up as well
        EventLog(run.events).emit(PoolReady(address="tcp://10.0.0.1:1", teachers=[]))
    for ask in (Run(run).add_teacher, lambda: Run(run).kill_teacher("teacher-0")):
        with pytest.raises(BadInput, match="no teachers of its own"):
            ask()
    assert read_changes(run) == []


def test_a_run_of_another_format_cannot_be_changed(folder):
    run = folder("none")
    write_json(run.path / "experiment.json", {"experiment": "mine", "format": 1})
    with pytest.raises(BadInput, match="format 1"):
        Run(run).pause()


@pytest.mark.parametrize("name", ["none", "ensemble"])
def test_without_a_checkpoint_of_the_training_there_is_no_way_back(folder, name):
    run = folder(name)
    for to, which in ((None, "from before a change of settings"), (9, "up to step 9")):
        with pytest.raises(
            BadInput, match=f"{which} .*several local models each has its own"
        ):
            Run(run).back(to)
    run.write_status(state="finished", result={})
    with pytest.raises(BadInput, match="is finished; only a running one"):
        Run(run).back()
    assert read_changes(run) == []


# Another number of ranks

GROUP = {"type": "train/aggregation/all_reduce", "ranks": 3, "least": 2}


def wanted(run):
    return ChangeQueue(run.path / CONTROL, "any/seed0", since=2.0**36).poll().ranks


def run_with(folder, aggregation):
    (folder / "spec.yaml").write_text(json.dumps({"aggregation": aggregation}))
    return RunFolder(folder)


def test_what_was_asked_for_last_is_wanted_also_after_a_resume(tmp_path):
    run = run_with(tmp_path, GROUP)
    assert wanted(run) is None
    for ranks in (2, 6, 4):
        scale(run, ranks)
        assert wanted(run) == ranks


@pytest.mark.parametrize("ranks", [1, 7])
def test_a_group_has_a_least_and_a_most(tmp_path, ranks):
    run = run_with(tmp_path, GROUP)
    with pytest.raises(BadInput, match=rf"{ranks} ranks .* this run can have 2 to 6"):
        scale(run, ranks)
    assert wanted(run) is None


def test_a_student_in_one_process_has_no_ranks(tmp_path):
    run = run_with(tmp_path, {"type": "train/aggregation/none"})
    with pytest.raises(BadInput, match="trains one student in one process"):
        scale(run, 2)
