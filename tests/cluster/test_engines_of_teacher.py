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


class Waiting(torch.nn.Module):
    """A model so slow that `scores` is faster on any machine."""

    def forward(self, views):
        product = views.float().flatten(1) @ torch.ones(48, 1500) / 48
        for _ in range(4):
            product = product @ torch.full((1500, 1500), 1 / 1500)
        return scores(views) + 0 * product[:, :1]


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

    def arriving(*known):
        prepared = []
        engines = [engine(name, ask, prepared, slow=slow) for name, ask, slow in known]
        monkeypatch.setattr(
            engines_of_teacher, "available_engines", lambda device, shown: engines
        )
        choice = EnginesOfTeacher(Waiting().eval(), DEPLOYMENT, 1, VIEWS, lambda gain: None)
        return choice, prepared

    return arriving


def serve(teacher, requests=12):
    for _ in range(requests):
        assert torch.allclose(teacher.in_use(VIEWS), scores(VIEWS), atol=1e-5)


@pytest.mark.long
def test_all_are_measured_before_it_serves_and_the_next_teacher_prepares_the_best_alone(
    arrive,
):
    known = ("quick", scores, False), ("slow", scores, True), ("compiled", scores, True)
    choice, prepared = arrive(*known)
    assert prepared == ["quick", "slow"]  # a compiler takes too long
    best = choice.first.chosen
    assert best.engine in {"quick", "slow"}
    serve(choice)
    assert choice.in_use.chosen == best
    following, prepared = arrive(*known)
    assert prepared == [best.engine]
    assert following.first.chosen.label == best.label
    assert f"{best.label} was the best here before" in following.described


@pytest.mark.long
def test_what_is_refused_is_forgotten_and_measured_anew(arrive):
    """Before it serves, and by real requests."""
    arrive(("quick", scores, False))
    replaced, prepared = arrive(("quick", wrong, False), ("other", scores, False))
    assert prepared == ["quick", "quick", "other"]
    assert replaced.first.chosen.label == "other fp32"
    asked = []

    def turns(views):
        asked.append(len(views))
        return wrong(views) if serving else scores(views)

    serving = False
    contradicted, _ = arrive(("other", turns, False))
    assert contradicted.first.chosen.label == "other fp32"
    serving = True
    serve(contradicted)
    assert contradicted.in_use.chosen.label == "eager fp32"
    after, _ = arrive(("other", scores, False))
    assert "before" not in after.described
