"""After the distillation, stand-ins are measured, chosen and put together."""

import json
from pathlib import Path

import pytest
from small_pipelines import distilled, member_training

from kdlab.errors import RunStopped
from kdlab.models.exported import load_exported, spec_of

LIBRARY = (
    "student={type: models/block_library, cuts: [blocks.0, blocks.1],"
    " variants: [linear, skip],"
    " of: {type: models/cifar_resnet, depth: 8, width: [4, 4, 8, 8]}}"
)
CHOICE = [
    LIBRARY,
    "method.teacher_cuts=[blocks.0, blocks.1]",
    "method.type=methods/puzzle",
    "method.faster=null",
    "method.smaller=1.1",
    "method.engine=folded",
    "method.images=16",
    "method.recalibrate=64",
]


@pytest.mark.long
def test_stand_ins_are_chosen_for_the_budget_and_put_together(elsewhere, tmp_path, digits):
    data, _ = digits
    training, events = member_training(tmp_path, data, *CHOICE)
    before = distilled(training, training.spec.student, data)
    result = training.spec.method.choose(training, before)
    choice = json.loads((training.folder / "choice.json").read_text())
    same = sum(o["parameters"] for o in choice["options"] if o["name"] == "same")
    taken = sum(o["parameters"] for o in choice["chosen"])
    assert taken == result.parameters <= same / 1.1
    assert all(abs(o["score"]) < 1e-6 for o in choice["options"] if o["name"] == "same")
    assert result.more["faster_than_teacher"] == pytest.approx(
        choice["teacher_ms"] / choice["student_ms"]
    )
    model = load_exported(result.best_path)
    assert "/whole/" in result.best_path  # it is the student: no training follows
    names = spec_of(Path(result.best_path)).choices
    assert list(names) == [o["name"] for o in choice["chosen"]]
    assert sum(p.numel() for p in model.net.parameters()) == taken
    # A resumed run chooses the same again without measuring.
    count = len(events)
    again = training.spec.method.choose(training, before)
    assert again.parameters == taken
    assert len(events) == count


@pytest.mark.long
def test_what_is_trained_on_is_no_student_yet(elsewhere, tmp_path, digits):
    data, _ = digits
    training, _ = member_training(tmp_path, data, *CHOICE, "method.fine_tune={epochs: 1}")
    before = distilled(training, training.spec.student, data)
    result = training.spec.method.choose(training, before)
    assert (
        result.model_path == result.best_path == str(training.folder / "chosen.safetensors")
    )
    assert not (training.folder / "whole").exists()


def test_a_stop_ends_the_measuring(elsewhere, tmp_path, digits):
    data, _ = digits
    training, _ = member_training(tmp_path, data, *CHOICE, stop=lambda: True)
    before = distilled(training, training.spec.student, data)
    with pytest.raises(RunStopped, match="while blocks were chosen"):
        training.spec.method.choose(training, before)
    assert not (training.folder / "choice.json").exists()
