"""A teacher is measured before it teaches: one that knows nothing, or other classes, is found."""

import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests_support import examples

import kdlab
from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.data.watched import watched_rows
from kdlab.errors import TeacherRefused
from kdlab.events.checks import CheckMade
from kdlab.events.runs import TeacherMeasured
from kdlab.experiment.teacher_check import _renamed, check_teacher, measured, validated
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.train.teacher import (
    PreparedTeacher,
    PreparedTeachers,
    TeacherSpec,
    prepare,
    prepared,
)


@pytest.fixture(scope="module")
def clothes():
    return kdlab.load("clothes/quickstart").spec.data.load()


@pytest.fixture(scope="module")
def few_clothes():
    """Few images, enough to tell whether a teacher knows their classes."""
    few = ("data.train_samples=300", "data.test_samples=100")
    return kdlab.load("clothes/quickstart", *few).spec.data.load()


@pytest.fixture(scope="module")
def bundled():
    teacher = prepared(construct(TeacherSpec, compose_card("teachers/clothes_resnet")))
    assert teacher is not None
    return teacher


def foreign(path, state, bundled, **fields):
    save_file(state, path)
    values = bundled.spec.model.fields() | {"weights": str(path), "sha256": None}
    spec = TeacherSpec(model=CifarResNet(**values), **fields)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return PreparedTeachers((PreparedTeacher(spec, path, sha256, None),))


def issue(events, code):
    """Return the only finding of a check, which must be an issue."""
    (finding,) = [e for e in events if isinstance(e, CheckMade) and e.code == code]
    assert finding.result == "issue"
    return finding


def renamed(state):
    """Rotate the rows of the head: the network takes each class for the next one."""
    for name in ("head.weight", "head.bias"):
        state[name] = state[name].roll(1, 0).contiguous()
    return state


@pytest.mark.long
def test_the_bundled_teacher_is_what_its_card_says(clothes, bundled):
    events = []
    teachers = PreparedTeachers((bundled,))
    measure = check_teacher(teachers, clothes, "cpu", 256, events.append)
    assert (len(clothes.train), len(clothes.test)) == (2317, 641)
    assert measure.top1 > 78
    assert measure.validation_top1 > 75
    assert measure.guessing == pytest.approx(100 * 100 / 641)
    assert set(measure.per_class) == set(clothes.classes)
    assert not measure.knows_nothing
    assert not measure.renamed
    event, answered, *checks = events
    assert {check.code: check.result for check in checks} == dict.fromkeys(
        ("KD-T01", "KD-T02", "KD-T03"), "passed"
    )
    assert isinstance(event, TeacherMeasured)
    rows = watched_rows(clothes)
    right = [
        clothes.label_name(k) == said for k, said in zip(rows, answered.said, strict=True)
    ]
    assert sum(right) > len(rows) / 2
    assert all(10 <= share <= 100 for share in answered.shares)
    assert "guessing 15.6 %" in event.text()


@pytest.mark.long
def test_a_measure_is_kept_and_a_damaged_one_is_made_anew(kdlab_home, few_clothes, bundled):
    teacher = PreparedTeachers((bundled,))
    first = measured(teacher, few_clothes, "cpu", 256)
    files = sorted((kdlab_home / "teachers" / "measured").glob("*.json"))
    assert files
    for spoil in (lambda text: text[:20], lambda text: text.replace("top1", "top")):
        for path in files:
            path.write_text(spoil(path.read_text()))
        assert measured(teacher, few_clothes, "cpu", 256) == first


@pytest.mark.long
def test_one_that_knows_nothing_is_said(tmp_path, few_clothes, bundled):
    torch.manual_seed(0)
    fresh = CifarResNet(depth=14, width=(16, 32, 64, 96)).architecture(10, 3)
    teacher = foreign(tmp_path / "w.safetensors", fresh.state_dict(), bundled)
    events = []
    measure = check_teacher(teacher, few_clothes, "cpu", 256, events.append)
    assert measure.knows_nothing
    assert "no more of this data than a guess" in issue(events, "KD-T01").found
    refused = foreign(tmp_path / "w.safetensors", fresh.state_dict(), bundled, min_top1=50)
    with pytest.raises(TeacherRefused, match="min_top1 demands 50"):
        check_teacher(refused, few_clothes, "cpu", 256, events.append)


@pytest.mark.long
def test_classes_in_another_order_are_recognised(tmp_path, few_clothes, bundled):
    state = renamed(load_file(bundled.weights))
    teacher = foreign(tmp_path / "w.safetensors", state, bundled)
    measure = measured(teacher, few_clothes, "cpu", 256)
    assert measure.knows_nothing
    names = few_clothes.classes
    expected = {names[k]: names[k - 1] for k in range(10)}
    assert measure.renamed == expected
    events = []
    check_teacher(teacher, few_clothes, "cpu", 256, events.append)
    assert "another order" in issue(events, "KD-T01").advice


@pytest.mark.long
def test_two_classes_that_are_exchanged_are_named(tmp_path, clothes, bundled):
    """The teacher still knows 8 of 10 classes: it is far better than a guess."""
    state = load_file(bundled.weights)
    for name in ("head.weight", "head.bias"):
        state[name][[2, 7]] = state[name][[7, 2]]
    teacher = foreign(tmp_path / "w.safetensors", state, bundled)
    events = []
    measure = check_teacher(teacher, clothes, "cpu", 256, events.append)
    assert not measure.knows_nothing
    a, b = clothes.classes[2], clothes.classes[7]
    assert measure.renamed == {a: b, b: a}
    advice = issue(events, "KD-T02").advice
    images = np.bincount(clothes.labels[clothes.validation])
    assert re.search(rf"your '{a}' for '{b}' in \d+ of {images[2]} images", advice)
    assert f"teacher.classes={{{a}: {b}, {b}: {a}}}" in advice
    right = replace(teacher.members[0].spec, classes=measure.renamed)
    mended = prepare(right, events.append, data=clothes)
    assert not measured(PreparedTeachers((mended,)), clothes, "cpu", 256).renamed


def test_what_is_hard_is_not_taken_for_exchanged():
    """Two classes that are confused slightly more often than not are not exchanged."""
    labels = np.repeat(np.arange(3), 50)
    predictions = labels.copy()
    predictions[:26], predictions[50:76] = 1, 0
    assert _renamed(predictions, labels, ("cat", "dog", "hat")) == ({}, [])
    predictions[:45], predictions[50:92] = 1, 0
    renamed, often = _renamed(predictions, labels, ("cat", "dog", "hat"))
    assert renamed == {"cat": "dog", "dog": "cat"}
    assert often == [
        "your 'dog' for 'cat' in 42 of 50 images",
        "your 'cat' for 'dog' in 45 of 50 images",
    ]


@pytest.mark.long
def test_a_run_shows_its_foreign_teacher(tmp_path, in_this_process, bundled):
    run = kdlab.load(
        "clothes/quickstart",
        "train.epochs=1",
        "train.warmup_epochs=0",
        "compare=[]",
        "soft_labels=in_process",
        "data.train_samples=128",
        "tracking.enabled=false",
    ).start()
    assert run.wait().state == "finished", run.status.error
    (event,) = [e for e in run.events() if isinstance(e, TeacherMeasured)]
    assert run.result["teacher_top1"] == event.top1 > 78
    assert "teacher" in run.table()
    seen = run.examine()
    assert [row[0] for row in seen.table()] == ["teacher", "in_process/seed0"]
    assert len(seen.top_disagreements(3).lines) == 3


@pytest.mark.long
def test_a_teacher_of_other_classes_is_found_by_what_it_says(in_this_process):
    """Class names do not tell: a teacher may have numbers where the data have words."""
    run = kdlab.load(
        "smoke/in_process",
        {"data": {"type": "data/synthetic", "size": 16, "channels": 1, "samples": 200}},
        "tracking.enabled=false",
    ).start()
    assert run.wait().state == "finished", run.status.error
    assert "no more of this data than a guess" in issue(run.events(), "KD-T01").found
    assert "KD-T01" in [one["code"] for one in run.result["checks"]]


@pytest.mark.long
def test_teachers_are_weighed_class_by_class_by_what_validation_says(
    tmp_path, few_clothes, bundled
):
    """One of two teachers takes each class for the next one, and is as sure as the other."""
    rolled = renamed(load_file(bundled.weights))
    (confused,) = foreign(tmp_path / "w.safetensors", rolled, bundled).members
    plain = PreparedTeachers((bundled, confused))
    weighed = validated(plain, few_clothes, "cpu", 256)
    known, unknown = weighed.combination.weights
    measure = measured(PreparedTeachers((bundled,)), few_clothes, "cpu", 256)
    assert known == tuple(measure.validation_f1[name] for name in few_clothes.classes)
    assert sum(known) > 4 * sum(unknown)
    assert min(unknown) >= 1
    assert weighed.fingerprint != plain.fingerprint
    both, mean = (measured(t, few_clothes, "cpu", 256).top1 for t in (weighed, plain))
    assert both > mean + 10
    assert both > measure.top1 - 10  # nearly as good as the teacher that knows the classes


def of_state(path, bundled, state):
    (teacher,) = foreign(path, state, bundled).members
    return teacher


@pytest.mark.parametrize("seed", range(examples(6, ci=2, quick=1)))
@pytest.mark.tiered
@pytest.mark.long
def test_of_teachers_that_know_different_classes_each_is_heard_about_its_own(
    tmp_path, few_clothes, bundled, seed
):
    """Each teacher confuses five classes, and is as sure of these as of the others."""
    order = torch.randperm(10, generator=torch.Generator().manual_seed(seed))
    members = []
    for number, unknown in enumerate(order.split(5)):
        state = load_file(bundled.weights)
        for name in ("head.weight", "head.bias"):
            state[name][unknown] = state[name][unknown.roll(1)]
        members.append(of_state(tmp_path / f"{number}.safetensors", bundled, state))
    plain = PreparedTeachers(tuple(members))
    weighed = validated(plain, few_clothes, "cpu", 256)
    both, mean = (measured(t, few_clothes, "cpu", 256).top1 for t in (weighed, plain))
    assert both > mean + 10


@pytest.mark.long
def test_who_says_one_class_of_everything_is_no_expert_of_it(
    tmp_path, few_clothes, bundled
):
    """A teacher that always predicts one class is right about all images of that class."""
    state = load_file(bundled.weights)
    state["head.bias"][8] += 50.0
    always = of_state(tmp_path / "w.safetensors", bundled, state)
    weighed = validated(PreparedTeachers((bundled, always)), few_clothes, "cpu", 256)
    known, biased = weighed.combination.weights
    assert biased[8] < known[8] / 2
    assert set(biased[:8] + biased[9:]) == {1.0}
    bundled_top1 = measured(PreparedTeachers((bundled,)), few_clothes, "cpu", 256).top1
    assert measured(weighed, few_clothes, "cpu", 256).top1 > bundled_top1 - 2


def test_weighing_by_validation_needs_validation_images(few_clothes, bundled):
    none = replace(few_clothes, validation=few_clothes.validation[:0])
    with pytest.raises(TeacherRefused, match="has no validation images"):
        validated(PreparedTeachers((bundled, bundled)), none, "cpu", 256)
