"""A teacher begins with what the one before it found, and forgets what does not hold."""

from types import SimpleNamespace

import pytest
import torch

from kdlab.cluster.teachers import engines_of_teacher
from kdlab.cluster.teachers.engines_of_teacher import EnginesOfTeacher
from kdlab.models.engines import Engine

VIEWS = torch.randint(
    0, 256, (64, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
DEPLOYMENT = SimpleNamespace(teacher="1234", shape=(3, 4, 4))
WORK_S = 10.0


class Waiting(torch.nn.Module):
    """Works for so long that what only adds is surely faster, on any machine."""

    def forward(self, views):
        made = views.float().flatten(1) @ torch.ones(48, 1500) / 48
        for _ in range(4):
            made = made @ torch.full((1500, 1500), 1 / 1500)
        return scores(views) + 0 * made[:, :1]


def scores(views):
    return views.float().flatten(1)[:, :10] / 25


def wrong(views):
    return scores(views).roll(1, dims=1)


def engine(name, ask, prepared, *, slow=False):
    def prepare(model, views, threads):
        prepared.append(name)
        return ask

    return Engine(name, "fp32", prepare, slow_to_prepare=slow)


@pytest.fixture
def arrive(monkeypatch, tmp_path):
    """A teacher comes up on a machine with these engines: [(name, ask, slow)]."""
    monkeypatch.setenv("KDLAB_HOME", str(tmp_path))
    monkeypatch.setattr(engines_of_teacher, "_FIRST_S", 0.0)

    def arriving(*known):
        prepared = []
        engines = [engine(name, ask, prepared, slow=slow) for name, ask, slow in known]
        monkeypatch.setattr(engines_of_teacher, "installed", lambda device: engines)
        made = EnginesOfTeacher(Waiting().eval(), DEPLOYMENT, 1, VIEWS, lambda gain: None)
        return made, prepared

    return arriving


def serve(teacher, requests=12):
    for _ in range(requests):
        answer = teacher.in_use(VIEWS)
        assert torch.allclose(answer, scores(VIEWS), atol=1e-5)
        teacher.worked(WORK_S)
        if teacher.in_use._preparing is not None:
            teacher.in_use._preparing.join()


@pytest.mark.long
def test_slow_ones_are_prepared_once_there_is_work_and_the_next_teacher_begins_with_the_best(
    arrive,
):
    found, prepared = arrive(("quick", scores, False), ("slow", scores, True))
    assert found.first.chosen.label == "quick fp32"
    assert prepared == ["quick"]
    found.worked(WORK_S)
    assert prepared == ["quick"]  # too little work yet
    serve(found)
    assert prepared == ["quick", "slow"]
    best = found.in_use.chosen.label
    assert best in {"quick fp32", "slow fp32"}
    following, prepared = arrive(("quick", scores, False), ("slow", scores, True))
    if best == "quick fp32":
        assert prepared == ["quick"]
    serve(following, 1)
    assert f"{best} was the best here before" in following.described
    assert ("slow" in prepared) == (best == "slow fp32")


@pytest.mark.long
def test_a_memory_that_real_requests_contradict_is_forgotten(arrive):
    found, _ = arrive(("quick", scores, False), ("slow", wrong, True))
    serve(found)  # the slow one is refused, and remembered as refused
    turned = [scores, wrong]

    def turns(views):
        return turned[0](views)

    following, _ = arrive(("quick", turns, False))
    assert following.first.chosen.label == "quick fp32"
    turned.reverse()
    serve(following)
    assert following.in_use.chosen.label == "eager fp32"
    third, _ = arrive(("quick", scores, False))
    assert "before" not in third.described
