"""A teacher gives up an engine that real requests contradict, and remembers what was chosen."""

import pytest
import torch

from kdlab.errors import KdlabError
from kdlab.models.engines import (
    ChosenEngine,
    EngineInUse,
    Trial,
    forget,
    recall,
    remember,
)
from kdlab.models.engines.choose import select_fastest

CLASSES = 10
EAGER = Trial(engine="eager", precision="fp32", rate=100.0)


class Right(torch.nn.Module):
    """Scores that depend on the image; each request takes 0.1 s by the test's clock."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.asked = clock, 0

    def forward(self, views):
        self.asked += 1
        self.clock.now += 0.1
        return scores(views)


def scores(views):
    return views.float().flatten(1)[:, :CLASSES]


class Clock:
    """Time passes only where a network computes."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("kdlab.models.engines.in_use.time", clock)
    return clock


def served(clock, first=None):
    """Return an engine in use, its network and the list of its changes of engine."""
    model, changes = Right(clock).eval(), []
    chosen = (EAGER, model) if first is None else first
    trials = tuple(dict.fromkeys([EAGER, chosen[0]]))
    serving = EngineInUse(
        model,
        ChosenEngine(*chosen, trials),
        lambda: changes.append(serving.chosen.label),
    )
    return serving, model, changes


def computing(clock, seconds, answer=scores):
    def ask(views):
        clock.now += seconds
        return answer(views)

    return ask


def requests(count, size=200):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randint(0, 256, (size, 3, 4, 4), dtype=torch.uint8, generator=generator)


def flipped(views):
    """Return the network's answers, with another class for the first image."""
    right = scores(views).clone()
    right[:1] = right[:1].roll(1, dims=1)
    return right


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (flipped, "a probability is"),
        (lambda views: scores(views) * float("nan"), "nan off"),
    ],
)
def test_the_one_in_use_is_held_to_the_network_on_its_first_requests(clock, answer, why):
    trial = Trial(engine="folded", precision="fp32", rate=300)
    serving, model, changes = served(clock, (trial, computing(clock, 0.01, answer)))
    (views,) = requests(1)
    assert torch.equal(serving(views), scores(views))  # the network's answer, not its own
    assert changes == ["eager fp32"]
    assert "on real requests a probability is" in str(serving)
    assert why in serving.trials[-1].refused
    asked = model.asked
    serving(views)
    assert model.asked == asked + 1  # eager from now on, once each


def test_after_its_first_requests_it_is_believed(clock):
    trial = Trial(engine="folded", precision="fp32", rate=300)
    serving, model, _ = served(clock, (trial, computing(clock, 0.01)))
    for views in requests(20):
        serving(views)
    assert model.asked == 5  # 1,000 images


def test_one_that_fails_at_a_request_is_refused_and_the_request_answered(clock):
    def ask(views):
        raise RuntimeError("no kernel for this size")

    trial = Trial(engine="other", precision="bf16", rate=300)
    serving, _, changes = served(clock, (trial, ask))
    (views,) = requests(1)
    assert torch.equal(serving(views), scores(views))
    assert changes == ["eager fp32"]
    assert "RuntimeError: no kernel for this size" in str(serving)


def test_images_of_nobody_teach_it_nothing(clock):
    """A probe of random pixels must not have an engine refused, nor judged."""
    trial = Trial(engine="folded", precision="fp32", rate=300)
    serving, model, changes = served(clock, (trial, computing(clock, 0.01, flipped)))
    (views,) = requests(1)
    assert torch.equal(serving.predict_unobserved(views), flipped(views))
    assert (model.asked, changes) == (0, [])


def test_an_error_of_the_network_itself_is_the_askers(clock):
    def ask(views):
        raise KdlabError("it fails")

    serving, _, changes = served(clock, (EAGER, ask))
    with pytest.raises(KdlabError, match="it fails"):
        serving(torch.zeros(1, 3, 4, 4))
    assert changes == []


NETWORK = {"teacher": "1234", "shape": [3, 32, 32], "threads": 1}


@pytest.fixture
def own_home(monkeypatch, tmp_path):
    monkeypatch.setenv("KDLAB_HOME", str(tmp_path))
    return tmp_path


def test_what_was_fastest_is_remembered_for_this_network_alone(own_home):
    refused = Trial(engine="b", precision="bf16", rate=900, refused="wrong")
    trials = (EAGER, Trial(engine="a", precision="fp32", rate=300), refused)
    assert recall(NETWORK) is None
    remember(NETWORK, trials)
    assert recall(NETWORK) == "a fp32"
    assert recall({**NETWORK, "threads": 2}) is None


@pytest.mark.parametrize(("second", "best"), [(306, "a fp32"), (310, "b fp32")])
def test_the_next_teacher_is_told_what_this_one_chose(own_home, second, best):
    """Where only noise separates two engines, both teachers take the simpler one."""
    a, b = (
        Trial(engine=name, precision="fp32", rate=rate)
        for name, rate in (("a", 300), ("b", second))
    )
    assert select_fastest((EAGER, a, b)).label == best
    remember(NETWORK, (EAGER, a, b))
    assert recall(NETWORK) == best


def test_what_was_refused_on_real_requests_is_forgotten(own_home):
    remember(NETWORK, (EAGER, Trial(engine="a", precision="fp32", rate=300)))
    forget(NETWORK)
    assert recall(NETWORK) is None
    forget(NETWORK)  # another teacher was quicker


def test_a_damaged_memory_is_said_and_measured_anew(own_home, caplog):
    remember(NETWORK, (EAGER,))
    (file,) = (own_home / "engines").iterdir()
    file.write_text('[{"engine": 3}]')
    assert recall(NETWORK) is None
    assert "Engines are measured anew" in caplog.text
