"""Estimates of an experiment, from rates that are set by the tests, not measured."""

import math

import pytest

import kdlab
from kdlab.cluster.emulated_pool import EmulatedPool
from kdlab.errors import BadInput
from kdlab.run import estimate as estimating
from kdlab.run.estimate import Estimate, StageEstimate, estimate
from kdlab.run.rates import NetworkRates
from kdlab.train.recipe import Recipe

STUDENT = NetworkRates(trained=1000.0, asked=4000.0, parameters=2_000_000, step_mb=30.0)
TEACHER = NetworkRates(trained=200.0, asked=500.0, parameters=10_000_000, step_mb=60.0)


@pytest.fixture(autouse=True)
def rates(monkeypatch):
    """Rates of networks are set, none is measured; 2,000 views are made a second."""

    def measured(spec, recipe, shape, classes):
        assert isinstance(recipe, Recipe)
        assert (shape, classes) == ((1, 8, 8), 10)
        return TEACHER if spec.width[0] == 8 else STUDENT

    monkeypatch.setattr(estimating, "network_rates", measured)
    monkeypatch.setattr(estimating, "views_per_second", lambda data, batch, seconds: 2000.0)
    monkeypatch.setattr(estimating.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(estimating, "prepared", lambda spec: "weights")


def of(name, *settings):
    return estimate(kdlab.load(f"smoke/{name}", *settings).spec)


def stage(costs):
    (entry,) = costs.stages
    return entry


def looks_s(data, recipe):
    """Seconds of evaluation: validation after each epoch, the test images once."""
    asked = recipe.epochs * len(data.validation) + len(data.test)
    return asked / 2000


@pytest.fixture
def once(digits):
    """Seconds of two epochs at so many seconds a sample, with their evaluation."""
    data, _ = digits
    recipe = kdlab.load("smoke/none").spec.train
    return lambda each_s, before=0.0: (
        4.0 + before + 2 * len(data.train) * each_s + looks_s(data, recipe)
    )


def test_without_a_teacher_the_slower_of_steps_and_views_counts(once, monkeypatch):
    costs = of("none")
    assert costs.teacher is None
    assert (costs.label_bytes, costs.wire_bytes, costs.teachers_needed) == (0, 0, None)
    assert stage(costs).seconds == pytest.approx(once(1 / 1000))
    assert (stage(costs).samples_per_second, stage(costs).bound_by) == (
        pytest.approx(1000),
        "the student's steps",
    )
    monkeypatch.setattr(estimating, "views_per_second", lambda data, batch, seconds: 50.0)
    assert stage(of("none")).bound_by == "views"
    assert stage(of("none")).samples_per_second == pytest.approx(50)


def test_a_teacher_in_the_process_answers_in_turn_with_the_student(once):
    costs = of("in_process")
    assert stage(costs).seconds == pytest.approx(once(1 / 1000 + 1 / 500))
    assert stage(costs).bound_by == "student and teacher in turn"
    assert costs.wire_bytes == 0
    assert costs.label_bytes == 40  # ten classes


def test_kept_labels_are_made_once_before_the_first_epoch(once, digits):
    costs = of("cached")
    assert stage(costs).seconds == pytest.approx(once(1 / 1000, len(digits[0].train) / 500))
    assert costs.disk_mb > of("in_process").disk_mb


def test_served_teachers_share_the_cores_with_the_student(once):
    """Two teachers of a thread each beside a student of one, on four cores, or on one."""
    costs = of("served")
    # A thread of the teacher answers 500/s: two of them are as fast as the student.
    assert stage(costs).seconds == pytest.approx(once(1 / 1000, 6.0))
    assert costs.teachers_needed == 2
    assert costs.wire_bytes > costs.label_bytes > 0
    assert "2 served teachers keep up with the student" in repr(costs)
    crowded = of("served", "teacher_pool.threads=3")
    assert stage(crowded).bound_by == "the student's steps"
    assert stage(crowded).samples_per_second == pytest.approx(1000 * 4 / 7)


def test_emulated_teachers_have_the_rate_they_are_said_to_have():
    pool = EmulatedPool(teachers=3, t_t=200.0)
    settings = "teacher_pool={type: cluster/emulated_pool, teachers: 3, t_t: 200.0}"
    costs = of("served", settings)
    assert stage(costs).samples_per_second == pytest.approx(pool.teachers * pool.t_t)
    assert stage(costs).bound_by == "teachers"
    assert costs.teachers_needed == math.ceil(1000 / 200)


def test_memory_counts_each_served_teacher_and_its_engines():
    plain, served = of("in_process"), of("served", "teacher_pool.engine=eager")
    auto = of("served", "teacher_pool.engine=auto")
    weights = TEACHER.parameters * 4 / 1e6
    assert served.memory_mb - plain.memory_mb == pytest.approx(
        3 * 350 + 2 * weights, abs=50
    )
    assert auto.memory_mb - served.memory_mb == pytest.approx(2 * 3 * weights, abs=50)


def test_a_teacher_without_weights_is_a_stage_of_its_own(monkeypatch, digits):
    monkeypatch.setattr(estimating, "prepared", lambda spec: None)
    costs = of("in_process")
    first, second = costs.stages
    assert (first.name, first.about) == ("teacher", "2 epochs, once: it is kept")
    assert first.samples_per_second == 200
    asked = 2 * len(digits[0].validation) + len(digits[0].test)
    assert first.seconds == pytest.approx(4 + 2 * len(digits[0].train) / 200 + asked / 500)
    assert costs.seconds == pytest.approx(first.seconds + second.seconds)
    assert len(of("none").stages) == 1  # nobody asks it


def test_members_are_reckoned_one_by_one():
    costs = of("in_process", {"compare": ["none", "in_process"], "seeds": [0, 1]})
    assert [entry.name for entry in costs.stages] == [
        "none/seed0", "in_process/seed0", "none/seed1", "in_process/seed1",
    ]  # fmt: skip


def test_an_ensemble_of_teachers_answers_one_after_the_other():
    both = estimating._in_turn([TEACHER, STUDENT])
    assert both.asked == pytest.approx(1 / (1 / 500 + 1 / 4000))
    assert both.parameters == 12_000_000
    assert both.step_mb == 60.0


@pytest.mark.parametrize("name", ["ensemble", "blockwise"])
def test_what_has_plans_of_its_own_is_refused(name):
    with pytest.raises(BadInput, match="one student in one process"):
        of(name)


def test_an_estimate_is_a_table_and_facts():
    entry = StageEstimate("none/seed0", "N-training", 90.0, 1234.5, "views")
    costs = Estimate((entry,), STUDENT, TEACHER, 2000.0, 1500.0, 20.0, 40, 56.0, 3)
    assert "about 1:30 min in all" in repr(costs)
    assert "none/seed0: N-training" in repr(costs)
    assert "1,234" in repr(costs)
    assert "the teacher answers 500 samples/s, 40 bytes of soft labels each" in repr(costs)
    assert "56 bytes on the wire" in repr(costs)
    assert "0.1 MB/s" in repr(costs)
    assert costs.to_json()["seconds"] == 90.0
    assert "<table" in costs._repr_html_()


def test_no_batch_larger_than_the_data_is_measured(monkeypatch, digits):
    """A batch of 1e18 images is more than any memory holds, and the data has fewer."""
    data, _ = digits
    batches = []

    def measured(spec, recipe, shape, classes):
        batches.append(recipe.batch)
        return STUDENT

    monkeypatch.setattr(estimating, "network_rates", measured)
    of("none", "train.batch=1e18", "train.accumulate=1e9")
    assert batches == [len(data.train)]
