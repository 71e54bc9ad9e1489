"""Defaults of the base class of methods, and the training of a member in this process."""

from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file
from small_experiments import ScriptedPool

from kdlab.changes.change import CONTROL, Pause, append
from kdlab.errors import RunStopped
from kdlab.experiment.method import MemberTraining, MethodSpec, recipe_faults
from kdlab.experiment.pools import Pools
from kdlab.experiment.setup import TrainingSetup
from kdlab.experiment.spec import short_name
from kdlab.soft_labels.none import NoTeacher
from kdlab.train.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Nothing(MethodSpec):
    """A method that trains nothing, and takes all defaults of its base class."""

    component = "mine/nothing"
    files = ("a.json", "b.json")

    def train(self, training):
        raise NotImplementedError


@pytest.fixture
def training_of(run_of, kdlab_home):
    """Makes the only training of a spec: (training, events)."""

    def make(spec, stop=lambda: False, pool=None):
        events = []
        setup = TrainingSetup(spec, stop=stop)
        run = run_of(spec)
        (member,) = spec.members()
        folder = run.member(member.name)
        folder.mkdir(parents=True)
        training = MemberTraining(
            setup=setup,
            member=member,
            run=run,
            folder=folder,
            emit=events.append,
            pools=Pools(run, setup, events.append, stop, pool),
            hosts=None,
            chaos=lambda pool, ranks: nullcontext(),
        )
        return training, events

    return make


def loop_of(training):
    return training.setup.loop(training.member, training.folder, training.emit)


def test_a_loop_is_trained_here_to_its_end(spec, training_of):
    training, events = training_of(spec("smoke/none"))
    result = training.train_here(loop_of(training), training.folder)
    assert result.steps == 3  # 96 samples, some of them for validation, in batches of 32
    assert result.seen == len(training.setup.data.train)
    assert result.parameters == sum(p.numel() for p in loop_of(training).model.parameters())
    assert (result.lost, result.repeated) == (0, 0)
    assert load_file(result.model_path)
    assert "epoch_done" in [e.KIND for e in events]


def test_a_stopped_one_goes_on_from_its_checkpoint_to_the_same_student(
    spec, training_of, tmp_path
):
    wanted = spec("smoke/none", train__epochs=2)
    training, _ = training_of(wanted)
    expected = load_file(training.train_here(loop_of(training), training.folder).model_path)
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > 2

    setup, folder = TrainingSetup(wanted, stop=stop), tmp_path / "other"
    loop = setup.loop(training.member, folder, lambda event: None)
    with pytest.raises(RunStopped):
        training.train_here(loop, folder)
    again = training.setup.loop(training.member, folder, lambda event: None)
    result = training.train_here(again, folder)
    resumed = load_file(result.model_path)
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)
    assert result.lost == result.repeated == 0


def test_soft_labels_come_from_the_teacher_of_the_experiment_or_another(spec, training_of):
    training, _ = training_of(spec("smoke/in_process"))
    asked = []

    def load_teacher():
        asked.append(1)
        return training.setup.load_teacher()

    training.train_here(loop_of(training), training.folder, load_teacher=load_teacher)
    assert asked
    folder = training.folder / "none"
    plain = training.train_here(loop_of(training), folder, source=NoTeacher())
    assert plain.steps == 3


def test_only_who_is_served_has_a_pool(spec, training_of):
    pool = ScriptedPool()
    training, _ = training_of(spec("smoke/in_process"), pool=pool)
    assert training.pool is None


def test_a_served_member_has_the_pool_of_whole_teachers_before_its_time_counts(
    spec, training_of
):
    pool = ScriptedPool()
    served, _ = training_of(spec("smoke/served"), pool=pool)
    assert served.pool is pool
    served.spec.method.prepare(served)
    assert served.pools._up == {}


def test_orders_of_the_run_reach_the_member_they_are_for(spec, training_of):
    training, _ = training_of(spec("smoke/none"))
    append(training.run.path, Pause(time=training.run.since + 1, member="somebody/else"))
    changes = training.changes
    changes.poll(now=True)
    assert not changes.paused
    order = Pause(time=training.run.since + 1, member=training.member.name)
    append(training.run.path, order)
    changes.poll(now=True)
    assert changes.paused
    assert (training.run.path / CONTROL).exists()


def test_what_a_method_need_not_say(spec, tmp_path):
    method, wanted = Nothing(), spec("smoke/in_process")
    assert short_name(wanted.soft_labels) == "in_process"
    assert method.compared(wanted) == {"nothing": wanted.soft_labels}
    assert isinstance(method.default_source(wanted), NoTeacher)
    assert method.described(["none", "served", "cached"]) == "served"
    assert method.described(["none", "in_process"]) == "in_process"
    assert method.labelled(wanted) is wanted.train
    assert not method.has_ranks(wanted)
    assert list(method.faults(wanted)) == []
    assert method.check(None) is None
    assert method.summarise(wanted, None) == []
    (tmp_path / "b.json").write_text("{}")
    assert method.artifacts(tmp_path) == [str(tmp_path / "b.json")]


def test_keys_of_a_recipe_that_a_method_does_not_have_are_faults_where_they_are_set():
    unused = {"epochs": "they take rounds", "lr": "they have none"}
    assert list(recipe_faults(Recipe(), unused, "no")) == []
    recipe = Recipe(epochs=Recipe().epochs + 1)
    (fault,) = recipe_faults(recipe, unused, "local models")
    assert fault.key == "train.epochs"
    assert fault.message == f"is {recipe.epochs}, not with local models: they take rounds"
