"""Taps and shapes of the inner outputs that two networks are compared by, and faults."""

import numpy as np
import pytest
import torch

from kdlab.errors import ModelError
from kdlab.experiment.feature_setup import (
    feature_job,
    row_length,
    teacher_taps,
    two_images,
)
from kdlab.features.attention import Attention
from kdlab.features.hint import Hint
from kdlab.models.cifar_resnet import CifarResNet

TEACHER = CifarResNet(depth=8, width=(8, 8, 16, 16))
STUDENT = CifarResNet(depth=8, width=(4, 4, 8, 8))


@pytest.fixture
def networks():
    torch.manual_seed(0)
    return TEACHER.build(10, 1).eval(), STUDENT.build(10, 1)


def test_the_images_that_are_asked_are_two_of_the_datas_shape_and_always_the_same(digits):
    data, _ = digits
    views = two_images(data)
    assert views.shape == (2, *data.shape)
    assert views.dtype == torch.uint8
    assert torch.equal(views, two_images(data))
    assert not torch.equal(views[0], views[1])


def test_a_job_has_taps_and_shapes_of_both_networks(digits, networks):
    data, (teacher, student) = digits[0], networks
    losses = [
        Hint(teacher="blocks.2", student="blocks.1"),
        Attention(teacher="blocks.0", student="blocks.0"),
    ]
    job = feature_job(losses, {"one": teacher}, student, data)
    assert job.classes == 10
    assert len(job.taps) == len(job.student_shapes) == len(job.teacher_shapes) == 2
    assert [shape[0] for shape in job.teacher_shapes] == [16, 8]  # channels
    assert [shape[0] for shape in job.student_shapes] == [4 * 2, 4]
    numbers = 10 + sum(int(np.prod(shape)) for shape in job.teacher_shapes)
    assert job.outputs == numbers
    taps = teacher_taps(losses, {"one": teacher}, data)
    assert row_length(taps, {"one": teacher}, data) == numbers
    assert student.training  # it was looked at, and is as it was


def test_outputs_that_cannot_be_compared_are_named_with_their_loss(digits, networks):
    data, (teacher, student) = digits[0], networks
    losses = [
        Attention(teacher="blocks.0", student="blocks.0"),
        Attention(teacher="penultimate", student="blocks.1"),
    ]
    with pytest.raises(ModelError) as caught:
        feature_job(losses, {"one": teacher}, student, data)
    message = str(caught.value)
    assert message.startswith("features.1 (features/attention) compares blocks.1")
    assert "with penultimate" in message


def test_of_several_teachers_the_losses_stand_in_the_order_of_their_row(digits, networks):
    data, (first, student) = digits[0], networks
    teachers = {"one": first, "two": CifarResNet(depth=8, width=(4, 4, 8, 12)).build(10, 1)}
    losses = [
        Hint(of="two"),
        Hint(of="one", teacher="blocks.0", student="blocks.0"),
        Attention(of="two", teacher="blocks.1", student="blocks.0"),
    ]
    job = feature_job(losses, teachers, student, data)
    assert [loss.of for loss in job.losses] == ["one", "two", "two"]
    assert job.teacher_shapes[0] == (8, 8, 8)
    assert job.teacher_shapes[1] == (12,)
    taps = teacher_taps(losses, teachers, data)
    assert [len(names) for names in taps] == [1, 2]
    assert row_length(taps, teachers, data) == job.outputs
    with pytest.raises(ModelError, match=r"features\.0 .* with penultimate of two"):
        feature_job([Attention(of="two")], teachers, student, data)
