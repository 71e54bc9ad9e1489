"""A dial: what is dragged is sent, what is typed is sent as it is, what is refused goes back."""

import pytest

from kdlab.changes.tunable import Tunable
from kdlab.config import Range
from kdlab.notebook.controls import Dial


class Run:
    """Takes what is within its range."""

    def __init__(self, tunable: Tunable) -> None:
        self.tunable, self.sent = tunable, []

    def __call__(self, name: str, value: float) -> bool:
        self.sent.append((name, value))
        return self.tunable.range.fault(value) is None


def dial(value=4.0, **limits):
    tunable = Tunable(name="loss.temperature", value=value, range=Range(**limits))
    run = Run(tunable)
    return Dial(tunable, run), run


def test_a_slider_and_its_field_are_one_number():
    made, run = dial(gt=0)
    made.slider.value = 8.0
    assert run.sent == [("loss.temperature", 8.0)]
    assert made.field.value == 8.0
    made.field.value = 2.5
    assert run.sent[1:] == [("loss.temperature", 2.5)]
    assert made.slider.value == 2.5


def test_a_typed_number_that_is_refused_goes_back():
    made, run = dial(gt=0)
    made.field.value = -5.0
    assert run.sent == [("loss.temperature", -5.0)]  # the run says why
    assert (made.field.value, made.slider.value) == (4.0, 4.0)


def test_a_typed_number_may_lie_beyond_the_slider():
    made, run = dial(gt=0)
    assert made.slider.max == 16.0
    made.field.value = 40.0
    assert run.sent == [("loss.temperature", 40.0)]
    assert (made.slider.value, made.slider.max) == (40.0, 40.0)


@pytest.mark.parametrize("shown", [6.0, 0.001, 90.0])
def test_what_somebody_else_has_set_is_shown_and_not_sent(shown):
    made, run = dial(gt=0)
    made.show(shown)
    assert (made.field.value, made.slider.value) == (shown, pytest.approx(shown))
    assert not run.sent


def test_it_is_disabled_with_the_run():
    made, _ = dial()
    made.disable()
    assert made.slider.disabled
    assert made.field.disabled
