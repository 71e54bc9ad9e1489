"""The setup of a training: the same for the same spec, whatever the teacher draws."""

from dataclasses import replace

import pytest
import timm
import torch
from safetensors.torch import save_file
from small_experiments import ids_of, same_tensors

from kdlab.config.load import spec_hash
from kdlab.errors import ModelError, TeacherRefused
from kdlab.events.general import Note
from kdlab.experiment.feature_setup import two_images
from kdlab.experiment.setup import TrainingSetup, head_of, network_of, short_hash
from kdlab.models.model import Normalised

HINT = [{"type": "features/hint", "teacher": "blocks.2", "student": "blocks.2"}]


def weights(loop):
    return [p.detach() for p in loop.model.parameters()]


def test_a_loop_is_the_same_whenever_it_is_made_and_another_for_another_seed(
    spec, tmp_path
):
    setup = TrainingSetup(spec(seeds=[0, 1]))
    first, second = setup.spec.members()
    loop = setup.loop(first, tmp_path / "a", lambda event: None)
    torch.rand(7)  # what else the process drew
    again = setup.loop(first, tmp_path / "b", lambda event: None)
    other_seed = setup.loop(second, tmp_path / "c", lambda event: None)
    assert same_tensors(weights(loop), weights(again))
    assert not same_tensors(weights(loop), weights(other_seed))
    assert ids_of(loop.job.samples) == ids_of(again.job.samples)
    assert ids_of(loop.job.samples) != ids_of(other_seed.job.samples)
    assert loop.job.spec_hash == setup.spec_hash == spec_hash(setup.spec.to_dict())
    assert loop.job.stop is setup.stop


def test_samples_are_of_the_recipe_and_the_member_and_a_plan_may_differ(spec):
    setup = TrainingSetup(spec(seeds=[4], train__batch=24))
    (member,) = setup.spec.members()
    plan = setup.samples(member).plan
    assert (plan.batch, plan.seed, plan.epochs) == (24, 4, 1)
    assert setup.samples(member, batch=8, epochs=3).plan.batch == 8
    assert setup.samples(member, batch=8, epochs=3).plan.epochs == 3
    assert set(ids_of(setup.samples(member))) <= set(setup.data.train.tolist())


def test_the_smallest_batch_is_the_aggregations(spec):
    ranks = {"type": "train/aggregation/all_reduce", "ranks": 2}
    setup = TrainingSetup(spec(aggregation=ranks))
    (member,) = setup.spec.members()
    assert setup.samples(member).plan.smallest == setup.spec.aggregation.smallest_batch


def test_notes_of_the_data_are_events(spec, monkeypatch):
    setup = TrainingSetup(spec(), emit=(heard := []).append)
    really = type(setup.spec.data).load

    def noisy(self, say, **options):
        say("two images are the same")
        return really(self, say, **options)

    monkeypatch.setattr(type(setup.spec.data), "load", noisy)
    assert setup.data is setup.data
    assert heard == [Note(message="two images are the same")]


def test_a_student_begins_with_weights_of_its_own(spec, monkeypatch, tmp_path):
    monkeypatch.setenv("KDLAB_HOME", str(tmp_path))
    assert TrainingSetup(spec()).student_begins() is None
    torch.manual_seed(5)
    ours = {"type": "timm/test_resnet", "weights": str(tmp_path / "w.safetensors")}
    published = tmp_path / "pretrained" / "test_resnet.safetensors"
    published.parent.mkdir(parents=True)
    for student, file, words in (
        (
            ours,
            tmp_path / "w.safetensors",
            "its last layer (fc) begins afresh: 1,000 classes",
        ),
        (
            {"type": "timm/test_resnet", "pretrained": True},
            published,
            "(a last layer of other",
        ),
    ):
        known = timm.create_model("test_resnet", in_chans=1).state_dict()
        save_file(known, file)
        setup = TrainingSetup(spec(student=student))
        line = setup.student_begins()
        assert line.startswith("the student begins with the weights of ")
        assert str(file) in line
        assert words in line
        (member,) = setup.spec.members()
        state = setup.loop(
            member, tmp_path / "loop", lambda event: None
        ).model.net.state_dict()
        assert torch.equal(state["layer1.0.conv1.weight"], known["layer1.0.conv1.weight"])
        assert state["fc.weight"].shape[0] == len(setup.data.classes)


def test_the_teacher_costs_the_student_no_chance(spec, kdlab_home, tmp_path):
    setup = TrainingSetup(spec("smoke/in_process"))
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    loaded = setup.load_teacher()
    setup.teacher_model()
    assert torch.equal(torch.rand(4), expected)
    views = two_images(setup.data)
    assert torch.allclose(loaded.infer(views), setup.teacher_model()(views))
    assert loaded.infer(views).shape == (2, 10)


def test_threads_are_what_they_were_after_a_teachers_recipe(spec, kdlab_home):
    before = torch.get_num_threads()
    assert len(TrainingSetup(spec("smoke/in_process")).teacher.members) == 1
    assert torch.get_num_threads() == before


def test_a_teacher_below_what_its_card_demands_is_refused(spec, kdlab_home, teacher_card):
    demanding = teacher_card | {"min_top1": 90}
    setup = TrainingSetup(spec("smoke/in_process", teacher=demanding))
    with pytest.raises(TeacherRefused, match="min_top1 demands 90"):
        setup.prepare_teacher()


def test_weighing_by_validation_is_refused_before_a_teacher_is_trained(spec, teacher_card):
    two, weigh = [teacher_card, teacher_card], {"weigh": "validation"}
    setup = TrainingSetup(spec("smoke/in_process", teacher=two, combine=weigh))
    setup.data = replace(setup.data, validation=setup.data.validation[:0])
    with pytest.raises(TeacherRefused, match="has no validation images"):
        _ = setup.teacher


def test_two_teachers_are_one_by_their_cards_or_by_validation(
    spec, kdlab_home, teacher_card
):
    two = [teacher_card, teacher_card | {"weight": 3.0}]
    by_cards = TrainingSetup(spec("smoke/in_process", teacher=two)).teacher
    assert by_cards.combination.weights == ((1.0,), (3.0,))
    weigh = {"weigh": "validation"}
    setup = TrainingSetup(spec("smoke/in_process", teacher=two, combine=weigh))
    first, second = setup.teacher.combination.weights
    assert len(first) == 10
    assert first == second  # they are the same network


def test_a_loop_with_features_has_the_teachers_outputs_behind_its_logits(
    spec, kdlab_home, tmp_path
):
    setup = TrainingSetup(spec("smoke/in_process", features=HINT))
    (member,) = setup.spec.members()
    loop = setup.loop(member, tmp_path, lambda event: None)
    (theirs,) = loop.job.features.teacher_shapes
    row = 10 + theirs[0] * theirs[1] * theirs[2]
    assert loop.job.outputs == row
    views = two_images(setup.data)
    answer = setup.load_teacher().infer(views)
    assert answer.shape == (2, row)
    assert torch.allclose(answer[:, :10], setup.load_teacher(logits=True).infer(views))
    (tapped,), _, numbers, fingerprint = setup.tapped()
    assert numbers == row
    assert fingerprint.startswith(setup.teacher.members[0].fingerprint)
    assert fingerprint.endswith(short_hash([tapped.taps]))
    assert short_hash([("blocks.1",)]) != short_hash([tapped.taps])


def test_who_has_no_teacher_has_no_features_to_compare(spec, kdlab_home, tmp_path):
    """One student of the comparison learns from the true labels only."""
    compared = spec("smoke/in_process", features=HINT, compare=["none", "in_process"])
    setup = TrainingSetup(compared)
    by_name = {m.source_name: m for m in compared.members()}
    loops = {
        name: setup.loop(member, tmp_path / name, lambda event: None)
        for name, member in by_name.items()
    }
    assert loops["none"].job.features is None
    assert loops["in_process"].job.features is not None


def test_hidden_states_bring_the_teachers_head_to_the_student(spec, kdlab_home, tmp_path):
    setup = TrainingSetup(spec("smoke/served", soft_labels__sends="hidden"))
    (member,) = setup.spec.members()
    loop = setup.loop(member, tmp_path, lambda event: None)
    name, head = setup.teacher_head
    assert loop.job.head is head
    assert loop.job.outputs == head.in_features == 16
    assert not any(p.requires_grad for p in head.parameters())
    assert dict(setup.teacher_model().net.named_modules())[name].out_features == 10


def test_a_network_whose_logits_come_from_something_else_has_no_head(spec, digits):
    data, _ = digits

    class Doubled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(data.shape[1] * data.shape[2], 10)

        def forward(self, x):
            return 2 * self.head(x.flatten(1))

    with pytest.raises(ModelError):
        head_of(Normalised(Doubled(), (0.5,), (0.5,), 10).eval(), data)
    network = network_of(spec("smoke/in_process"), data)
    assert head_of(network, data)[1].out_features == 10
