"""After the blocks, the whole student is trained further."""

from pathlib import Path

from small_pipelines import BEFORE, TEACHER, distilled, member_training

from kdlab.methods.blockwise.setup import write_architecture
from kdlab.methods.blockwise.whole import train_whole
from kdlab.models.exported import load_exported, spec_of
from kdlab.train.recipe import Recipe

RECIPE = Recipe(epochs=1, batch=48, lr=0.01)


def test_the_whole_is_trained_on_from_what_was_distilled(elsewhere, tmp_path, digits):
    data, _ = digits
    training, events = member_training(tmp_path, data, "method.fine_tune={epochs: 1}")
    before = distilled(training, training.spec.student, data)
    result = train_whole(RECIPE, training, before, searched=False)
    assert result.distilled == BEFORE
    assert (result.epochs, result.steps, result.seen) == (9, 90, 900)  # of the distillation
    assert result.train_seconds == 4.5
    assert result.whole_seconds > 0
    assert result.failovers == [0.25]
    assert result.last != BEFORE
    assert "/whole/" in result.model_path
    start, end = (
        load_exported(p).state_dict() for p in (before.model_path, result.model_path)
    )
    apart = [float((start[k] - end[k]).abs().max()) for k in start if k.endswith("weight")]
    assert 0 < max(apart) < 1  # from there, not from fresh weights
    assert events[0].epochs == 1
    assert result.more["blocks_top1"] == BEFORE.top1


def test_what_was_found_is_trained_from_fresh_weights(elsewhere, tmp_path, digits):
    data, _ = digits
    training, _ = member_training(tmp_path, data)
    card = write_architecture(TEACHER, training.folder)
    before = distilled(training, training.spec.student, data, architecture=card)
    result = train_whole(RECIPE, training, before, searched=True)
    assert spec_of(Path(result.model_path)).width == TEACHER.width
    assert result.architecture == card
    assert "blocks_top1" not in result.more  # the supernet's blocks are not in the student
