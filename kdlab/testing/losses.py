"""Conformance tests of losses: properties of every distillation loss."""

from dataclasses import fields

import torch
from torch import Tensor

from kdlab.errors import ShapeError
from kdlab.losses.soft_loss import LossSpec

_N, _C = 12, 7


def check_loss(loss: LossSpec) -> None:
    """Check a loss; raise AssertionError with the property that does not hold."""
    generator = torch.Generator().manual_seed(0)
    student = torch.randn((_N, _C), generator=generator, dtype=torch.float64) * 2
    teacher = torch.randn((_N, _C), generator=generator, dtype=torch.float64) * 2
    labels = torch.randint(0, _C, (_N,), generator=generator)
    _scalar_and_finite(loss, student, teacher, labels)
    if loss.rests_at_equality:
        _no_gradient_at_equality(loss, teacher, labels)
    _teacher_gets_no_gradient(loss, student, teacher, labels)
    if not loss.compares_rows:
        _mean_over_batch(loss, student, teacher, labels)
    _order_of_rows_does_not_matter(loss, student, teacher, labels)
    _extreme_logits(loss, student, teacher, labels)
    _shapes(loss, student, labels)
    if any(f.name == "temperature" for f in fields(loss)):
        _gradient_scale(loss, student, teacher, labels)


def gradient(loss: LossSpec, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    leaf = student.clone().requires_grad_()
    loss.soft(leaf, teacher, labels).backward()  # type: ignore[no-untyped-call]  # torch stubs
    assert leaf.grad is not None
    return leaf.grad


def _scalar_and_finite(loss: LossSpec, *batch: Tensor) -> None:
    value = loss.soft(*batch)
    assert value.ndim == 0, f"the loss has shape {tuple(value.shape)}, must be a scalar"
    assert torch.isfinite(value), f"the loss is {float(value)}"
    assert gradient(loss, *batch).abs().max() > 0, "unlike logits give no gradient"


def _no_gradient_at_equality(loss: LossSpec, teacher: Tensor, labels: Tensor) -> None:
    size = float(gradient(loss, teacher, teacher, labels).abs().max())
    assert size < 1e-6, f"the gradient is {size:g} where student and teacher agree"


def _teacher_gets_no_gradient(
    loss: LossSpec, student: Tensor, teacher: Tensor, labels: Tensor
) -> None:
    leaf = teacher.clone().requires_grad_()
    loss.soft(student.clone().requires_grad_(), leaf, labels).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is None or not leaf.grad.any(), "the teacher gets a gradient"


def _mean_over_batch(loss: LossSpec, *batch: Tensor) -> None:
    once, twice = loss.soft(*batch), loss.soft(*(torch.cat([b, b]) for b in batch))
    assert torch.allclose(once, twice, rtol=1e-9), (
        f"a batch given twice changes the loss from {once:g} to {twice:g}: it must be a "
        "mean over the batch"
    )


def _order_of_rows_does_not_matter(loss: LossSpec, *batch: Tensor) -> None:
    order = torch.arange(_N - 1, -1, -1)
    mean, moved = loss.soft(*batch), loss.soft(*(b[order] for b in batch))
    assert torch.allclose(mean, moved, rtol=1e-9), "the order of the rows changes the loss"


def _extreme_logits(
    loss: LossSpec, student: Tensor, teacher: Tensor, labels: Tensor
) -> None:
    value = loss.soft(student.float() * 500, teacher.float() * 500, labels)
    assert torch.isfinite(value), f"logits of ±1000 give a loss of {float(value)}"


def _shapes(loss: LossSpec, student: Tensor, labels: Tensor) -> None:
    try:
        loss.soft(student, torch.zeros((_N, _C + 1), dtype=student.dtype), labels)
    except ShapeError:
        return
    raise AssertionError("a teacher with another number of classes raises no ShapeError")


def _gradient_scale(loss: LossSpec, *batch: Tensor) -> None:
    """Check that for large T the gradient scales as T to the declared power (0 with T²)."""
    sizes = []
    for temperature in (100.0, 200.0):
        scaled = type(loss)(**loss.fields() | {"temperature": temperature})
        sizes.append(float(gradient(scaled, *batch).norm()))
    ratio = sizes[1] / sizes[0]
    wanted = 2.0**loss.gradient_power
    assert abs(ratio / wanted - 1) < 0.05, (
        f"the gradient changes by {ratio:.3f} when T doubles, expected {wanted:g}: is the "
        "T² factor missing?"
    )
