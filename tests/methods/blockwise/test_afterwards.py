"""After the blocks: the whole student is trained on, or chosen from its stand-ins."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from small_pipelines import TEACHER

import kdlab
from kdlab.errors import RunStopped
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.method import MemberTraining
from kdlab.experiment.setup import TrainingSetup
from kdlab.methods.blockwise.puzzle.chosen import choose_blocks
from kdlab.methods.blockwise.setup import write_architecture
from kdlab.methods.blockwise.whole import train_whole
from kdlab.models.exported import load_exported, spec_of
from kdlab.models.model import export
from kdlab.train.evaluate import Accuracy
from kdlab.train.recipe import Recipe
from kdlab.train.result import MemberResult

RECIPE = Recipe(epochs=1, batch=48, lr=0.01)
BEFORE = Accuracy(top1=1.0, top5=2.0, samples=300)
LIBRARY = (
    "student={type: models/block_library, cuts: [blocks.0, blocks.1],"
    " variants: [linear, skip],"
    " of: {type: models/cifar_resnet, depth: 8, width: [4, 4, 8, 8]}}"
)


@pytest.fixture
def training_of(elsewhere, tmp_path, digits):
    """Makes the training of a member whose teacher lies there: `training_of(*overrides)`."""
    data, _ = digits
    weights = tmp_path / "teacher.safetensors"
    torch.manual_seed(1)
    export(TEACHER.build(10, 1), TEACHER, weights, data)
    told = []

    def made(*words, stop=lambda: False):
        spec = kdlab.load(
            "smoke/blockwise",
            "teacher={type: train/teacher, model: {type: models/cifar_resnet, depth: 8,"
            f" width: [4, 4, 8, 8], weights: {weights}}}}}",
            *words,
        ).spec
        run = RunFolder(tmp_path / "run")
        run.path.mkdir(exist_ok=True)
        member = spec.members()[0]
        folder = run.member(member.name)
        folder.mkdir(parents=True, exist_ok=True)
        return MemberTraining(
            setup=TrainingSetup(spec, stop=stop), member=member, run=run, folder=folder,
            emit=told.append, pools=None, hosts=None,
            chaos=lambda pool, targets: nullcontext(),
        )  # fmt: skip

    made.told = told
    return made


def distilled(training, spec, data, **more):
    """What the blocks came to: fresh weights here."""
    torch.manual_seed(5)
    path = training.folder / "student.safetensors"
    model = spec.build(10, 1)
    export(model, spec, path, data)
    usual = {
        "last": BEFORE, "best": BEFORE, "model_path": str(path), "best_path": str(path),
        "epochs": 9, "steps": 90, "seen": 900, "train_seconds": 4.5, "failovers": [0.25],
        "validation_last": 1.0, "validation_best": 1.0, "best_epoch": 9, "lost": 0,
        "samples_per_second": 200.0, "repeated": 0, "rolled_back": 0, "figures": {},
        "parameters": 7,
    }  # fmt: skip
    return MemberResult(**usual | more)


def test_the_whole_is_trained_on_from_what_was_distilled(training_of, digits):
    data, _ = digits
    training = training_of("method.fine_tune={epochs: 1}")
    before = distilled(training, training.spec.student, data)
    found = train_whole(RECIPE, training, before, searched=False)
    assert found.distilled == BEFORE
    assert (found.epochs, found.steps, found.seen) == (9, 90, 900)  # of the distillation
    assert found.train_seconds == 4.5
    assert found.whole_seconds > 0
    assert found.failovers == [0.25]
    assert found.last != BEFORE
    assert "/whole/" in found.model_path
    one, other = (
        load_exported(p).state_dict() for p in (before.model_path, found.model_path)
    )
    apart = [float((one[k] - other[k]).abs().max()) for k in one if k.endswith("weight")]
    assert 0 < max(apart) < 1  # from there, not from fresh weights
    assert training_of.told[0].epochs == 1


def test_what_was_found_is_trained_from_fresh_weights(training_of, digits):
    data, _ = digits
    training = training_of()
    card = write_architecture(TEACHER, training.folder)
    before = distilled(training, training.spec.student, data, architecture=card)
    found = train_whole(RECIPE, training, before, searched=True)
    assert spec_of(Path(found.model_path)).width == TEACHER.width
    assert found.architecture == card


CHOICE = [
    LIBRARY,
    "method.teacher_cuts=[blocks.0, blocks.1]",
    "method.choose={faster: null, smaller: 1.1, engine: folded, images: 16}",
    "method.recalibrate=64",
]


@pytest.mark.long
def test_stand_ins_are_chosen_for_the_budget_and_put_together(training_of, digits):
    data, _ = digits
    training = training_of(*CHOICE)
    before = distilled(training, training.spec.student, data)
    found = choose_blocks(training.spec.method, training, before)
    kept = json.loads((training.folder / "choice.json").read_text())
    same = sum(o["parameters"] for o in kept["options"] if o["name"] == "same")
    taken = sum(o["parameters"] for o in kept["chosen"])
    assert taken == found.parameters <= same / 1.1
    assert all(abs(o["score"]) < 1e-6 for o in kept["options"] if o["name"] == "same")
    assert found.more["faster_than_teacher"] == pytest.approx(
        kept["teacher_ms"] / kept["student_ms"]
    )
    model = load_exported(found.best_path)
    assert "/whole/" in found.best_path  # nothing trains it on: it is the student
    names = spec_of(Path(found.best_path)).choices
    assert list(names) == [o["name"] for o in kept["chosen"]]
    assert sum(p.numel() for p in model.net.parameters()) == taken
    # Going on, the same is chosen again without measuring.
    told = len(training_of.told)
    again = choose_blocks(training.spec.method, training, before)
    assert again.parameters == taken
    assert len(training_of.told) == told


@pytest.mark.long
def test_what_is_trained_on_is_no_student_yet(training_of, digits):
    data, _ = digits
    training = training_of(*CHOICE, "method.fine_tune={epochs: 1}")
    before = distilled(training, training.spec.student, data)
    found = choose_blocks(training.spec.method, training, before)
    assert (
        found.model_path == found.best_path == str(training.folder / "chosen.safetensors")
    )
    assert not (training.folder / "whole").exists()


def test_a_stop_ends_the_measuring(training_of, digits):
    data, _ = digits
    training = training_of(*CHOICE, stop=lambda: True)
    before = distilled(training, training.spec.student, data)
    with pytest.raises(RunStopped, match="while blocks were chosen"):
        choose_blocks(training.spec.method, training, before)
    assert not (training.folder / "choice.json").exists()
