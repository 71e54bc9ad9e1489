"""K local models trained as stacked weights, against the same models one after the other."""

import pytest
import torch
from local_models import Case, apart, ec, weights
from torch import nn

import kdlab
from kdlab.errors import BadInput, KdlabError, SpecError
from kdlab.experiment.setup import TrainingSetup
from kdlab.methods.ensemble import compression, local_sgd
from kdlab.methods.ensemble.ensemble_run import EnsembleRun
from kdlab.methods.ensemble.local_job import UnitCosts
from kdlab.methods.ensemble.model_workers import InProcessWorkers
from kdlab.methods.ensemble.relabel import relabel
from kdlab.methods.ensemble.stacked import StackedModels, check_stackable
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.model import Normalised
from kdlab.models.nin import NetworkInNetwork
from kdlab.soft_labels.none import NoTeacherSource
from kdlab.train.aggregation.model_average import ModelAverage
from kdlab.train.aggregation.muloco import MuLoCo

SPECS = {
    "ec": ec(12, 4, p_iterations=2, mu=0.5),
    "ma": (ModelAverage(tau=4), ModelAverage(tau=4).timetable(12, 3)),
    "muloco": (MuLoCo(tau=4), MuLoCo(tau=4).timetable(12, 3)),
}


def stacked(case):
    return InProcessWorkers(
        case.make, lambda w: NoTeacherSource(w.job.samples), stacked=True
    )


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.long
def test_stacked_models_are_those_that_train_alone(digits, tmp_path, kind):
    """Rounding differs, since a batched product adds in another order."""
    spec, table = SPECS[kind]
    separate = Case(digits, tmp_path / "alone", spec, table, 3).run(looks=3)
    case = Case(digits, tmp_path / "stacked", spec, table, 3)
    outcome = case.direction(stacked(case), looks=3).run()
    # Muon in bf16 and quantisation turn a rounding into a larger difference.
    near = 1e-5 if kind != "muloco" else 0.02
    for worker in range(3):
        assert apart(weights(separate, worker), weights(outcome, worker)) < near
    assert outcome.account.steps == separate.account.steps
    assert outcome.account.samples == separate.account.samples


def test_networks_with_batch_norm_keep_statistics_of_their_own():
    spec = CifarResNet(depth=8, width=(4, 4, 8, 8))
    torch.manual_seed(0)
    models = [spec.build(10, 1).train() for _ in range(3)]
    twins = [spec.build(10, 1).train() for _ in range(3)]
    for original, twin in zip(models, twins, strict=True):
        twin.load_state_dict(original.state_dict())
    stack = StackedModels(models)
    for _ in range(2):
        views = torch.randint(0, 256, (3, 6, 1, 8, 8), dtype=torch.uint8)
        scores = stack.scores(views)
        for k, model in enumerate(twins):
            assert float((model(views[k]) - scores[k]).detach().abs().max()) < 1e-5
    for original, twin in zip(models, twins, strict=True):
        assert apart(dict(original.state_dict()), dict(twin.state_dict())) < 1e-5
    assert apart(dict(models[0].state_dict()), dict(models[1].state_dict())) > 1e-3


def test_dropout_is_another_one_for_each_model():
    torch.manual_seed(0)
    model = NetworkInNetwork(width=8).build(10, 1)
    twin = NetworkInNetwork(width=8).build(10, 1)
    twin.load_state_dict(model.state_dict())
    views = torch.randint(0, 256, (1, 4, 1, 12, 12), dtype=torch.uint8).repeat(
        2, 1, 1, 1, 1
    )
    first, second = StackedModels([model, twin]).scores(views)
    assert float((first - second).detach().abs().max()) > 1e-4


@pytest.mark.long
@pytest.mark.parametrize(
    "at", [1, 2]
)  # the second one is asked after the first has a batch
def test_a_stopped_stack_goes_on_to_the_same_bits(digits, tmp_path, at):
    spec, table = SPECS["ma"]
    quiet = Case(digits, tmp_path / "quiet", spec, table, 2)
    undisturbed = quiet.direction(stacked(quiet)).run()
    case = Case(digits, tmp_path / "stopped", spec, table, 2)
    asked = []

    def stop():
        if len(case.local_workers) == 2 and case.local_workers[1].sgd.steps == 6:
            asked.append(None)
        return len(asked) >= at

    case.stop = stop
    with pytest.raises(KdlabError, match="stopped by the user"):
        case.direction(stacked(case)).run()
    assert [worker.sgd.steps for worker in case.local_workers.values()] == [6, 6]
    again = Case(digits, tmp_path / "stopped", spec, table, 2)
    outcome = again.direction(stacked(again)).run()
    assert [e.step for e in again.events.of("worker_resumed")] == [6, 6]
    for worker in range(2):
        assert apart(weights(undisturbed, worker), weights(outcome, worker)) == 0


def test_priced_steps_cost_as_much_as_alone(digits, tmp_path):
    spec, table = SPECS["ma"]
    case = Case(digits, tmp_path, spec, table, 2)
    case.prices = UnitCosts(step_s=1.0, row_s=0.0)
    assert case.direction(stacked(case)).run().account.train_s == pytest.approx(12.0)


def test_each_worker_is_charged_its_own_relabelling(digits, tmp_path, monkeypatch):
    """The clock advances by eight seconds while a worker relabels, and at no other time."""
    clock = [0.0]

    def slow_relabel(*arguments):
        clock[0] += 8.0
        return relabel(*arguments)

    monkeypatch.setattr(local_sgd, "_processor_s", lambda: clock[0])
    monkeypatch.setattr(compression, "relabel", slow_relabel)
    spec, table = ec(4, 2, p_iterations=1, mu=0.5)
    case = Case(digits, tmp_path, spec, table, 3)
    case.direction(stacked(case), looks=1).run()
    works = [e.work for e in case.events.of("worker_done") if e.what == "train"]
    assert [(w["relabel_s"], w["train_s"]) for w in works] == 3 * [(0, 0)] + 3 * [(8, 0)]


def experiment(*words):
    return kdlab.load("smoke/ensemble", "method.stacked=true", *words).spec


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "so is processes"),
        (("method.processes=false", "train.accumulate=2"), r"train\.accumulate: is 2"),
        (("method.processes=false", "train.compile=true"), r"train\.compile: is True"),
        (("method.processes=false", "train.quantise_after=0.5"), r"train\.quantise_after"),
    ],
)
def test_what_cannot_be_stacked_is_said_before_the_start(words, message):
    with pytest.raises(SpecError, match=message):
        experiment(*words)


class Asks(nn.Module):
    """A layer with a branch that depends on its outputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        outputs = self.layer(x.flatten(1))
        return outputs if outputs.sum() > 0 else -outputs


def test_a_network_that_vmap_cannot_do_is_refused_by_name(tmp_path):
    model = Normalised(Asks(), (0.5,), (0.5,), 3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(BadInput, match=r"Asks cannot be trained .* method.stacked=false"):
        check_stackable(model, (1, 2, 2))
    assert apart(before, dict(model.state_dict())) == 0
    spec = experiment("method.processes=false")
    EnsembleRun(spec.method, TrainingSetup(spec), spec.members()[0]).check()
