"""timm's optimisers and schedules, means of weights, parts of batches: resumed exactly."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from student_loops import Recorder, make, source
from tests_support import examples
from timm.loss import BinaryCrossEntropy

from kdlab.data.samples import RankPart
from kdlab.data.splits import NO_LABEL
from kdlab.errors import RunStopped
from kdlab.models.patch_net import PatchNet
from kdlab.papers.shares import shared_rows
from kdlab.train.hard_loss import binary_cross_entropy
from kdlab.train.optimizers import available_optimizers
from kdlab.train.step import TrainStep, cut_rows
from kdlab.train.student_step import BatchStep

WORDS = [
    {"optimizer": "timm/lamb", "lr": 0.01},
    {"optimizer": "timm/muon", "lr": 0.01},
    {"optimizer": "timm/lion", "lr": 1e-3, "optimizer_options": {"betas": [0.9, 0.95]}},
    {"schedule": "timm/cosine", "schedule_options": {"cycle_limit": 3}, "epochs": 3},
    {"schedule": "plateau", "patience": 0, "drop_lr_factor": 0.5},
    {"ema": 0.9, "hard_loss": "bce", "label_smoothing": 0.1},
    {"accumulate": 3, "optimizer": "timm/adamw", "lr": 1e-3},
    {"quantise_after": 0.4},
]


@pytest.mark.parametrize("words", WORDS, ids=str)
@pytest.mark.parametrize("stop_after", [3, 7])
@pytest.mark.long
def test_a_resume_is_exact(samples, tmp_path, words, stop_after):
    uninterrupted, record = make(samples, tmp_path / "whole", **words)
    expected = uninterrupted.run(source(samples, tmp_path))
    loop, first = make(samples, tmp_path / "cut", Recorder(stop_after=stop_after), **words)
    with pytest.raises(RunStopped):
        loop.run(source(samples, tmp_path))
    again, second = make(samples, tmp_path / "cut", **words)
    assert again.resume()
    result = again.run(source(samples, tmp_path))
    assert first.losses() | second.losses() == record.losses()
    for name, tensor in uninterrupted.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    assert (result.last, result.best) == (expected.last, expected.best)
    ends = [load_file(r.model_path) for r in (expected, result)]
    assert all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])


@pytest.mark.long
def test_every_optimiser_that_is_offered_can_be_gone_on_with(samples, tmp_path):
    """One step each, through a checkpoint's tensors and JSON."""
    names = [name for name in available_optimizers() if name.startswith("timm/")]
    assert len(names) > 70
    for name in names[:: len(names) // examples(len(names))]:
        words = {"optimizer": name, "lr": 1e-3, "epochs": 1}
        loop, _ = make(samples, tmp_path / name, Recorder(stop_after=2), **words)
        with pytest.raises(RunStopped):
            loop.run(source(samples, tmp_path))
        again, _ = make(samples, tmp_path / name, **words)
        assert again.resume(), name
        before, after = (x.train_step.optimizer.state_dict() for x in (loop, again))
        assert before["state"].keys() == after["state"].keys()
        assert again.run(source(samples, tmp_path)).lost == 0


def test_the_mean_of_the_weights_is_what_is_validated_and_exported(samples, tmp_path):
    from timm.utils import ModelEmaV3

    loop, _ = make(samples, tmp_path, ema=0.9, epochs=2)
    mean = ModelEmaV3(loop.model, decay=0.9, use_warmup=True)
    batches = source(samples, tmp_path)
    steps = []
    step = loop.one_batch

    def counted(batch, rows):
        step(batch, rows)
        mean.update(loop.model, step=loop.position.step)
        steps.append(batch.index)

    loop.one_batch = counted
    result = loop.run(batches)
    exported, expected = load_file(result.model_path), mean.module.net.state_dict()
    assert len(steps) == 10
    assert all(torch.equal(exported[k], expected[k]) for k in exported)
    newest = loop.model.net.state_dict()
    assert any(not torch.equal(exported[k], newest[k]) for k in exported)


def test_parts_of_a_batch_have_the_gradient_of_all_of_it(samples, tmp_path):
    """The rows of this network do not affect each other."""
    ends = []
    for parts in (1, 2, 7):
        loop, _ = make(samples, tmp_path / str(parts), accumulate=parts, momentum=0.0)
        torch.manual_seed(0)
        net = PatchNet(patch=2, width=8).build(10, 1)
        loop.train_step.model = loop.train_step.run_model = net
        loop.train_step.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        batch = next(iter(source(samples, tmp_path).epoch(0, ())))
        loss = loop._step(batch, len(batch.ids))
        ends.append((float(loss), [p.detach().clone() for p in net.parameters()]))
    for loss, weights in ends[1:]:
        assert loss == pytest.approx(ends[0][0], rel=1e-5)
        for weight, expected in zip(weights, ends[0][1], strict=True):
            assert torch.allclose(weight, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "ranks", "wanted", "parts"),
    [
        (64, 1, 4, 4),
        (10, 1, 8, 5),
        (17, 2, 8, 4),
        (29, 2, 8, 7),
        (50, 3, 8, 8),
        (3, 1, 8, 1),
    ],
)
def test_ranks_cut_their_rows_into_as_many_parts(rows, ranks, wanted, parts):
    """Batch norms of all ranks meet in each part; a single row has no variance."""
    cut = []
    for rank in range(ranks):
        share = shared_rows(rows, (1.0,) * ranks)[rank]
        recipe = SimpleNamespace(accumulate=wanted)
        part = RankPart(rank, (1.0,) * ranks)
        job = SimpleNamespace(recipe=recipe, samples=SimpleNamespace(part=part))
        parts_of = partial(TrainStep.parts, SimpleNamespace(recipe=recipe))
        step = SimpleNamespace(job=job, train_step=SimpleNamespace(parts=parts_of))
        sizes = [
            len(range(share)[p]) for p in cut_rows(share, BatchStep._parts(step, rows))
        ]
        assert sum(sizes) == share
        assert min(sizes) >= 2 or share < 4
        cut.append(len(sizes))
    assert set(cut) == {parts}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_binary_cross_entropy_is_timms(smoothing):
    torch.manual_seed(0)
    scores = torch.randn(6, 9, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 9, (6,))
    ours = binary_cross_entropy(scores, labels, smoothing).mean()
    (gradient,) = torch.autograd.grad(ours, scores)
    theirs = BinaryCrossEntropy(smoothing=smoothing)(scores, labels)
    (expected,) = torch.autograd.grad(theirs, scores)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    assert torch.allclose(gradient, expected, atol=1e-12)
    labels[2] = NO_LABEL
    assert binary_cross_entropy(scores, labels, smoothing)[2].item() == 0
