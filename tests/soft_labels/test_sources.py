"""Every in-process source passes the public conformance suite."""

import pytest
import torch

from kdlab.errors import CacheError
from kdlab.soft_labels.cached import Cached
from kdlab.soft_labels.in_process import InProcess
from kdlab.soft_labels.none import NoTeacher
from kdlab.soft_labels.scripted import Scripted
from kdlab.soft_labels.source import LoadedTeacher, SourceContext
from kdlab.testing import check_source


def linear(views):
    """A teacher that answers a known function of the pixels."""
    flat = views.float().flatten(1) / 255
    generator = torch.Generator().manual_seed(0)
    return flat @ torch.randn((flat.shape[1], 10), generator=generator)


@pytest.fixture
def context(samples, tmp_path):
    events = []

    source_context = SourceContext(
        samples=samples,
        student="test",
        folder=tmp_path,
        load_teacher=lambda: LoadedTeacher(linear, "linear"),
        report=lambda event: events.append((event.KIND, event)),
    )
    return source_context, events


@pytest.mark.parametrize(
    ("spec", "soft"),
    [(NoTeacher(), False), (InProcess(), True), (Scripted(), True)],
    ids=str,
)
def test_conforms(context, samples, spec, soft):
    check_source(lambda start: spec.build(context[0]), samples, epochs=3, soft=soft)


@pytest.mark.parametrize("top_k", [None, 3])
def test_cached_conforms(context, samples, top_k):
    spec = Cached(views=2, top_k=top_k)
    make = lambda start: spec.build(context[0])  # noqa: E731
    check_source(make, samples, epochs=2)
    check_source(make, samples, epochs=3, same_views=False)  # the third repeats the first


def test_in_process_asks_the_teacher_about_the_students_view(context, samples):
    source = InProcess().build(context[0])
    batch = next(iter(source.epoch(1, ())))
    assert torch.equal(batch.soft, linear(batch.views))


def test_cached_labels_belong_to_the_view_of_the_epoch(context, samples):
    source = Cached(views=2).build(context[0])
    for epoch in (0, 1, 2):
        for batch in source.epoch(epoch, ()):
            assert torch.allclose(batch.soft, linear(batch.views), atol=2e-2)


def test_cached_runs_the_teacher_once(context, samples):
    Cached(views=1).build(context[0])
    Cached(views=1).build(context[0])
    names = [name for name, _ in context[1]]
    assert names.count("cache_written") == 1
    assert dict(context[1])["cache_started"].megabytes == 240 * 10 * 2 / 1e6


def test_damaged_labels_are_made_again_with_one_line(context, samples, tmp_path):
    """Zeroed ones trained a student to 10 % without a word; cut ones stopped every run."""
    path = tmp_path / "cache"
    Cached(path=str(path)).build(context[0])
    for count, damage in enumerate((lambda raw: bytes(len(raw)), lambda raw: raw[:200]), 1):
        file = path / "logits.npy"
        file.write_bytes(file.read_bytes()[:128] + damage(file.read_bytes()[128:]))
        source = Cached(path=str(path)).build(context[0])
        batch = next(iter(source.epoch(0, ())))
        assert torch.allclose(batch.soft, linear(batch.views), atol=2e-2)
        lines = [event.message for name, event in context[1] if name == "warned"]
        assert len(lines) == count
        assert "are damaged" in lines[-1]


def test_a_cache_for_other_views_is_refused(context, samples, tmp_path):
    path = str(tmp_path / "cache")
    Cached(views=2, path=path).build(context[0])
    with pytest.raises(CacheError, match=r"views: the cache has 2, this run needs 1"):
        Cached(views=1, path=path).build(context[0])


def test_a_cache_of_another_teacher_is_refused(context, samples, tmp_path):
    from dataclasses import replace

    path = str(tmp_path / "cache")
    Cached(path=path).build(context[0])
    foreign = replace(context[0], load_teacher=lambda: LoadedTeacher(linear, "another"))
    with pytest.raises(CacheError, match="teacher: the cache has 'linear'"):
        Cached(path=path).build(foreign)


def test_a_cache_of_other_samples_is_refused(context, samples, tmp_path, digits):
    """Rows belong to the training ids: another split has other rows."""
    from dataclasses import replace

    from kdlab.data.digits import Digits
    from kdlab.data.samples import planned

    path = str(tmp_path / "cache")
    Cached(path=path).build(context[0])
    other_split = Digits(train_samples=240, split_seed=1, augment=digits[1].augment)
    foreign = planned(other_split.load(), other_split.to_dict(), batch=50, seed=3, epochs=3)
    with pytest.raises(CacheError, match="ids: the cache has"):
        Cached(path=path).build(replace(context[0], samples=foreign))


def test_top_k_must_be_below_the_classes(context):
    with pytest.raises(CacheError, match="top_k is 10"):
        Cached(top_k=10).build(context[0])


def test_scripted_confidence(context):
    batch = next(iter(Scripted(confidence=0.9).build(context[0]).epoch(0, ())))
    right = batch.soft.softmax(1)[torch.arange(len(batch.ids)), batch.labels]
    assert torch.allclose(right, torch.tensor(0.9))
