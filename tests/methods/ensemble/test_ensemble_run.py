"""One member of an ensemble experiment: what its workers have, and what becomes of them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from local_models import apart
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode

import kdlab
from kdlab.errors import BadInput
from kdlab.events.general import Warned
from kdlab.experiment.setup import TrainingSetup
from kdlab.methods.ensemble.ensemble_run import EnsembleRun
from kdlab.methods.ensemble.exchange import WHOLE, fetch
from kdlab.methods.ensemble.local_job import UnitCosts
from kdlab.methods.ensemble.model_workers import InProcessWorkers
from kdlab.methods.ensemble.round_driver import RoundDriver
from kdlab.models.ensemble import Combination, combined
from kdlab.models.exported import load_exported
from kdlab.soft_labels.none import NoTeacherSource
from kdlab.train.evaluate import evaluate

SKEWED = "method.shards={kind: dirichlet, concentration: 0.05}"


def run_of(*overrides, compare="{}", number=0, prices=None):
    """The member of this number of a small experiment."""
    spec = kdlab.load("smoke/ensemble", f"method.compare={compare}", *overrides).spec
    member = spec.members()[number]
    return EnsembleRun(spec.method, TrainingSetup(spec), member, prices)


def averaging(*overrides, kind="model_average, tau: 3", **rest):
    aggregation = f"aggregation={{type: train/aggregation/{kind}}}"
    return run_of("method.workers=2", "train.epochs=1", aggregation, *overrides, **rest)


def trained(run, folder, events=None):
    """Train with all workers in this process and return (outcome, result)."""
    emit = ([] if events is None else events).append
    workers = InProcessWorkers(
        lambda number: run.worker(number, folder, emit),
        lambda worker: run.source(worker, "run", None),
    )
    outcome = RoundDriver(run.training(folder, emit), workers).run()
    return outcome, run.result(outcome, folder)


# What its workers have


def test_a_variant_may_have_workers_and_epochs_of_its_own():
    compare = (
        "{a: {aggregation: {type: train/aggregation/none}, workers: 1, epochs: 2}, "
        "b: {aggregation: {type: train/aggregation/none}, iterations: 7}}"
    )
    a, b = (run_of(compare=compare, number=k) for k in (0, 1))
    assert (a.workers, b.workers) == (1, 3)
    assert (a.recipe.epochs, b.recipe.epochs) == (2, 6)
    assert a.timetable.iterations == 2 * 12  # 240 images in batches of 20
    assert b.timetable.iterations == 7


def test_each_worker_has_images_of_its_own():
    run = run_of()
    parts = [set(run.samples(k).plan.ids.tolist()) for k in range(3)]
    assert set.union(*parts) == set(run.setup.data.train.tolist())
    assert sum(map(len, parts)) == len(run.setup.data.train)


def test_all_do_as_many_iterations_as_the_smallest_part_allows(tmp_path):
    run = run_of(SKEWED, "train.epochs=8")
    sizes = [run.samples(k).plan.batches for k in range(3)]
    assert min(sizes) < max(sizes)
    assert run.timetable.iterations == 8 * min(sizes)
    # Who has more images has them in as many epochs as the iterations need.
    most = max(range(3), key=lambda k: sizes[k])
    worker = run.worker(most, tmp_path, lambda event: None)
    assert worker.job.samples.plan.epochs == 8
    assert worker.job.timetable == run.timetable


def test_classes_that_a_worker_never_sees_are_said():
    events = []
    run = run_of(SKEWED, "train.epochs=8")
    run.warn_of_unseen_classes(events.append)
    (warning,) = events
    assert isinstance(warning, Warned)
    labels = run.setup.data.labels
    for worker in range(3):
        seen = len(np.unique(labels[run.samples(worker).plan.ids]))
        assert (f"worker {worker} {10 - seen}" in warning.message) is (seen < 10)
    events.clear()
    run_of().warn_of_unseen_classes(events.append)
    assert events == []


@pytest.mark.parametrize(
    ("kind", "start", "alike"),
    [
        ("model_average, tau: 3", "null", True),
        ("model_average, tau: 3", "own", False),
        ("none", "null", False),
        ("none", "equal", True),
    ],
)
def test_models_that_are_averaged_begin_alike(kind, start, alike):
    run = averaging(f"method.start={start}", kind=kind)
    before = torch.random.get_rng_state()
    first, second = (dict(run.fresh(k).net.state_dict()) for k in (0, 1))
    assert (apart(first, second) == 0) is alike
    assert torch.equal(torch.random.get_rng_state(), before)  # no chance of others is spent
    assert apart(first, dict(run.fresh(0).net.state_dict())) == 0


def test_a_place_for_models_of_others_is_made_once_for_each_kind():
    models = (
        "method.models=[{type: models/patch_net, patch: 8}, "
        "{type: models/patch_net, patch: 4}, {type: models/patch_net, patch: 8}]"
    )
    give = run_of(models).scratch(torch.device("cpu"))
    first = give(0)
    assert give(2) is first
    second = give(1)
    assert second is not first
    assert give(1) is second


def test_prices_and_the_link_of_the_spec_reach_whoever_counts(tmp_path):
    prices = UnitCosts(step_s=2.0, row_s=0.5)
    run = averaging("method.gbit_per_s=8", prices=prices)
    assert run.training(tmp_path, print).network.bytes_per_s == 1e9
    assert run.worker(0, tmp_path, print).job.prices == prices


# What can be wrong before a start


def test_nothing_is_wrong_with_what_can_be_trained():
    averaging().check()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("model_average, tau: 7", "tau is 7, and each worker has 6 local iterations"),
        (
            "streaming_diloco, tau: 12, fragments: 2",
            "2 fragments take turns, and 6 iterations have 1 communications",
        ),
        (
            "ensemble, tau: 2, compression: {type: train/compression/distillation, "
            "p_iterations: 9}",
            "p_iterations is 9, longer than the whole training of 6",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_numbers(kind, message):
    with pytest.raises(BadInput, match=message):
        averaging(kind=kind).check()


def test_who_chooses_by_validation_needs_some():
    run = averaging(kind="soup, recipe: greedy")
    run.check()
    vars(run.setup)["data"] = replace(run.setup.data, validation=np.empty(0, np.int64))
    with pytest.raises(BadInput, match=r"chooses by validation images, and .* has none"):
        run.check()


def test_a_student_chosen_by_validation_needs_some():
    run = averaging()
    object.__setattr__(run.method, "final", "validation")
    run.check()
    vars(run.setup)["data"] = replace(run.setup.data, validation=np.empty(0, np.int64))
    with pytest.raises(BadInput, match="is validation, and the data has none; set data"):
        run.check()


def test_parts_of_very_unlike_sizes_are_refused(monkeypatch):
    parts = [
        SimpleNamespace(plan=SimpleNamespace(ids=range(n), batches=6)) for n in (5, 120)
    ]
    run = averaging()
    monkeypatch.setattr(EnsembleRun, "samples", lambda self, worker: parts[worker])
    with pytest.raises(BadInput, match=r"5 to 120 images.*concentration"):
        run.check()


# What becomes of it

RIVALS = {
    "diloco": "diloco, tau: 3",
    "streaming_diloco": "streaming_diloco, tau: 4, fragments: 2",
    "papa": "papa, tau: 3",
    "easgd": "easgd, tau: 3",
    "easgd_async": "easgd_async, tau: 3",
    "bmuf": "bmuf, tau: 3",
    "dart": "dart, tau: 3",
    "soup": "soup",
    "muloco": "muloco, tau: 3",
    "codistillation": "codistillation, tau: 3",
}


@pytest.fixture(scope="module")
def rivals(tmp_path_factory):
    """(folder, outcome, result) of each, trained to its end once."""
    trainings = {}
    for name, kind in RIVALS.items():
        folder = tmp_path_factory.mktemp(name)
        trainings[name] = folder, *trained(averaging(kind=kind), folder)
    return trainings


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.long
def test_every_rival_leaves_a_student_and_a_global_model(rivals, name):
    folder, outcome, result = rivals[name]
    assert result.lost == result.repeated == 0
    assert result.global_top1 > 0
    assert result.seen == 240
    assert len(outcome.models) == 2
    assert (folder / "student.safetensors").is_file()
    file = "ensemble.yaml" if name == "codistillation" else "global.safetensors"
    assert (folder / file).is_file()


COUNTS = (32 * 8 * 8, 32, 32 * 32, 32, 10 * 32, 10)  # numbers of each of its tensors


@pytest.mark.long
def test_rivals_exchange_the_bytes_that_one_counts_by_hand(rivals):
    """Each of two workers takes in one model: the other's, or 2 (K - 1) / K of one in a ring."""
    sent = {
        name: result.figures["exchanged_bytes"] for name, (_, _, result) in rivals.items()
    }
    stem, layer, head = 4 * (32 * 8 * 8 + 32), 4 * (32 * 32 + 32), 4 * (10 * 32 + 10)
    model = stem + layer + head
    for name in (
        "diloco",
        "papa",
        "easgd",
        "easgd_async",
        "bmuf",
        "dart",
        "codistillation",
    ):
        assert sent[name] == 2 * model, name  # in each of two communications
    # The first of two fragments is the stem, and has its turn twice.
    assert sent["streaming_diloco"] == stem + (layer + head) + stem
    assert sent["soup"] == model  # once, in the end
    # Two bits of each number and four levels of each tensor, in bytes of their own.
    coded = [count // 4 + (count % 4 > 0) + 4 * 4 for count in COUNTS]
    assert sent["muloco"] == 2 * sum(coded)
    assert rivals["muloco"][2].figures["fetched_bytes"] == 2 * 2 * sum(coded)


COMPUTED = {  # by aggregation: options; steps and forward passes of a worker's local iteration
    "model_average": ("", 1.0, 0.0),
    # A quarter more steps in compressions, whose batches both models label
    "ensemble": (
        "diversity_weight: 0, compression: {type: train/compression/distillation, "
        "p_fraction: 0.25}", 1.25, 2 * 0.25,
    ),
    # The other model's predictions, but not in the first of four rounds
    "codistillation": ("", 1.0, 0.75),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("kind", COMPUTED)
def test_methods_compute_beside_their_iterations_what_one_counts_by_hand(tmp_path, kind):
    """PyTorch counts twice, so that what is done once a round can be left out."""
    options, steps, forward_passes = COMPUTED[kind]

    def counted(iterations):
        tau = iterations // 4
        aggregation = f"type: train/aggregation/{kind}, tau: {tau}, {options}"
        compare = f"{{a: {{aggregation: {{{aggregation}}}, iterations: {iterations}}}}}"
        with FlopCounterMode(display=False) as counter:
            trained(run_of("method.workers=2", compare=compare), tmp_path / str(iterations))
        return counter.get_total_flops()

    # A patch of 8 x 8 pixels, a hidden layer, ten classes; a batch of 20
    stem, behind = 32 * 8 * 8, 32 * 32 + 10 * 32
    forward = 2 * 20 * (stem + behind)
    step = 2 * forward + 2 * 20 * behind  # the images have no gradient
    expected = steps * step + forward_passes * forward
    assert (counted(24) - counted(12)) / (2 * 12) == expected


NORMED = "student={type: models/cifar_resnet, depth: 8, width: [4, 4, 8, 8]}"


def of_all_images(run, weights):
    """Build a network whose batch norms have statistics of all training views, in one batch."""
    data = run.setup.data
    model = run.model_spec(0).build(10, 1)
    model.net.load_state_dict(weights)
    for norm in (m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)):
        norm.reset_running_stats()
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.from_numpy(run.samples(0).views(data.train, 0)))
    return model.eval()


@pytest.mark.parametrize("kind", ["papa, tau: 3", "diloco, tau: 3"])
@pytest.mark.long
def test_an_average_has_statistics_of_its_own_and_nothing_else_has(tmp_path, kind):
    prices = UnitCosts(step_s=1.0, row_s=0.001)
    run = averaging(NORMED, "train.evaluate_batch=512", kind=kind, prices=prices)
    outcome, result = trained(run, tmp_path)
    data, file = run.setup.data, outcome.models[0]
    state = fetch(file, WHOLE) or fetch(file)
    model = of_all_images(run, state)
    exported = load_exported(tmp_path / "global.safetensors")
    assert apart(dict(exported.net.state_dict()), dict(model.net.state_dict())) < 1e-4
    means = [name for name in state if name.endswith("running_mean")]
    assert (
        min(float((model.net.state_dict()[n] - state[n]).abs().max()) for n in means) > 1e-3
    )
    top1 = evaluate(model, data, data.test, 512).top1
    assert result.global_top1 == pytest.approx(top1)
    assert outcome.looks[-1].global_ == pytest.approx(100 - top1)
    student = load_file(tmp_path / "student.safetensors")
    if kind.startswith("papa"):  # its local models are no averages
        assert any(apart(student, fetch(local)) == 0 for local in outcome.models)
    else:
        assert apart(student, dict(exported.net.state_dict())) == 0
    # It changes neither the weights nor the time of the training.
    plain = replace(run, method=replace(run.method, recalibrate=0))
    again, left = trained(plain, tmp_path / "plain")
    for first, second in zip(outcome.models, again.models, strict=True):
        assert apart(fetch(first), fetch(second)) == 0
    assert left.train_seconds == result.train_seconds
    exported = load_exported(tmp_path / "plain" / "global.safetensors")
    assert apart(dict(exported.net.state_dict()), state) == 0


def test_an_ensemble_is_kept_as_a_card_of_teachers(tmp_path):
    run = averaging(kind="none")
    outcome, result = trained(run, tmp_path)
    card = yaml.safe_load((tmp_path / "ensemble.yaml").read_text())
    paths = [entry["model"]["weights"] for entry in card["teacher"]]
    assert len(paths) == 2
    networks = [load_exported(path).eval() for path in paths]
    for network, file in zip(networks, outcome.models, strict=True):
        assert apart(dict(network.net.state_dict()), fetch(file)) == 0
    data = run.setup.data
    joint = combined(networks, Combination.from_weights([1.0, 1.0]))
    assert evaluate(joint, data, data.test, 256).top1 == pytest.approx(result.global_top1)
    assert result.diff_lg == pytest.approx(
        np.mean([look.diff_lg for look in outcome.looks]), abs=1e-6
    )


@pytest.mark.parametrize("final", ["training_loss", "validation"])
def test_the_student_is_the_best_by_what_the_spec_says(tmp_path, final):
    run = averaging(f"method.final={final}", kind="none")
    events = []
    outcome, _ = trained(run, tmp_path, events)
    # As if the first had learnt its own images best and the second did best on validation.
    *before, last = outcome.looks
    last = replace(last, validation_locals=[30.0, 20.0])
    outcome = replace(outcome, losses={0: 0.1, 1: 0.2}, looks=[*before, last])
    result = run.result(outcome, tmp_path)
    by = {"training_loss": 0, "validation": 1}[final]
    student = load_file(tmp_path / "student.safetensors")
    assert apart(student, load_file(outcome.models[by].path)) == 0
    best = load_file(tmp_path / "best.safetensors")
    assert apart(best, load_file(outcome.models[1].path)) == 0
    assert (result.validation_last, result.validation_best) == (70 + 10 * by, 80.0)
    assert (result.last == result.best) is (final == "validation")


def test_rounds_without_a_worker_are_lost_samples(tmp_path):
    run = averaging(kind="none")
    outcome, complete = trained(run, tmp_path)
    assert complete.lost == 0
    account = replace(outcome.account, samples=outcome.account.samples - 3 * 20)
    result = run.result(replace(outcome, account=account), tmp_path)
    assert result.lost == 3 * 20
    assert result.workers == 2
    assert result.figures["iterations"] == result.steps == 6


def test_the_form_of_a_compression_is_that_of_the_last_models(tmp_path):
    run = averaging(
        kind="ensemble, tau: 3, compress_last: true, compression: "
        "{type: train/compression/pruning, sparsity: 0.75, p_iterations: 2}"
    )
    outcome, result = trained(run, tmp_path)
    paths = [tmp_path / "student.safetensors", *(file.path for file in outcome.models)]
    for path in paths:
        for name, weight in load_file(path).items():
            if weight.dim() >= 2:
                assert int((weight == 0).sum()) >= int(0.75 * weight.numel()), (path, name)
    assert result.figures["iterations"] == 6
    assert result.steps == 6 + 2 * 2


def test_the_source_of_batches_goes_on_where_the_worker_stands(tmp_path):
    run = averaging()
    worker = run.worker(0, tmp_path, print)
    next(worker.stream.take(NoTeacherSource(worker.job.samples), 1))
    worker.stream.taken = 2
    source = run.source(worker, "run", None)
    first = next(iter(source.epoch(0, {0, 1})))
    assert first.ids.tolist() == worker.job.samples.batches(0)[2].tolist()
    assert (tmp_path / "worker-0").is_dir()
