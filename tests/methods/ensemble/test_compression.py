"""A worker's compression: other workers' models label its data, and it learns from them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from local_models import MODEL, Case, apart, ec

from kdlab.errors import Diverged, KdlabError
from kdlab.methods.ensemble import compression as module
from kdlab.methods.ensemble.compression import (
    compress,
    others_bytes,
)
from kdlab.methods.ensemble.exchange import publish
from kdlab.methods.ensemble.local_job import WorkParts
from kdlab.train.aggregation.none import NoAggregation


@pytest.fixture
def case(digits, tmp_path):
    def make(**options):
        spec, table = ec(iterations=8, tau=4, p_iterations=3, **options)
        return Case(digits, tmp_path, spec, table, 2)

    return make


def published(case, count=2):
    """Publish models that each have other fresh weights, as workers do."""
    files = []
    for worker in range(count):
        torch.manual_seed(worker)
        net = MODEL.build(10, 1).net
        files.append(publish(net, worker, case.folder / f"{worker}.safetensors"))
    return files


def test_without_iterations_nothing_is_done(case):
    worker = case().make(0)
    idle = replace(worker.job.timetable.rounds[0], compress_steps=0)
    assert compress(worker.sgd, worker.stream, idle, []) == WorkParts()
    assert worker.sgd.steps == 0


def test_the_models_of_others_count_as_fetched(case):
    training = case(mu=0.5)
    worker, files = training.make(1), published(training)
    assert others_bytes(worker.job, files) == files[0].bytes
    round_ = training.table.rounds[0]
    before = {k: v.clone() for k, v in worker.model.net.state_dict().items()}
    parts = compress(worker.sgd, worker.stream, round_, files)
    assert parts.fetched_bytes == files[0].bytes
    assert parts.samples == 3 * 20
    assert len(parts.model_losses) == 2
    assert parts.ensemble_loss <= np.mean(parts.model_losses)
    assert parts.relabel_s > 0 < parts.compress_s
    assert worker.sgd.steps == 3
    assert apart(before, dict(worker.model.net.state_dict())) > 0


@pytest.mark.parametrize(("mu", "taken"), [(1.0, 3), (0.5, 0)])
def test_all_its_data_is_the_stream_of_training_and_a_part_is_one_of_its_own(
    case, mu, taken
):
    training = case(mu=mu)
    worker = training.make(0)
    assert training.aggregation.compresses_in_line is (mu == 1.0)
    compress(worker.sgd, worker.stream, training.table.rounds[0], published(training))
    assert worker.stream.taken == taken
    assert not NoAggregation().compresses_in_line


@pytest.mark.parametrize("subset", ["drawn", "fixed"])
def test_a_part_of_the_data_is_drawn_anew_or_always_the_same(case, subset):
    training = case(mu=0.5, subset=subset)
    worker = training.make(0)
    ids, spec = set(worker.job.samples.plan.ids.tolist()), training.aggregation.compression
    parts, epochs = [], []
    for round_ in training.table.rounds:
        stream = module._stream_apart(worker.job, spec, replace(round_, compress_steps=3))
        parts.append(set(stream.samples.plan.ids.tolist()))
        epochs.append(stream.ahead(1)[0].epoch)
    assert all(part < ids and len(part) == len(ids) // 2 for part in parts)
    assert (parts[0] == parts[1]) is (subset == "fixed")
    # These epochs' views never occur in local training, and they differ each time.
    assert min(epochs) >= 10**6
    assert epochs[0] != epochs[1]


def test_a_model_that_is_broken_ends_the_training(case):
    training = case(mu=0.5)
    worker = training.make(0)
    (sound,) = published(training, 1)
    net = MODEL.build(10, 1).net
    with torch.no_grad():
        for weight in net.parameters():
            weight.fill_(float("nan"))
    broken = publish(net, 1, training.folder / "broken.safetensors")
    with pytest.raises(Diverged, match=r"local models are \[.*nan\] near step 0"):
        compress(worker.sgd, worker.stream, training.table.rounds[0], [sound, broken])
    assert worker.sgd.steps == 0


def test_pseudo_labels_of_other_images_are_not_trained_on(case, monkeypatch):
    """By Eq. 3 an ensemble is no worse than its models are on average."""
    training = case(mu=0.5)
    worker = training.make(1)
    wrong = SimpleNamespace(loss=3.0, model_losses=[1.0, 2.0])
    monkeypatch.setattr(module, "mean_outputs", lambda *about: (wrong, 0.0))
    with pytest.raises(KdlabError, match=r"Round 0, worker 1: .*defect of kdlab"):
        compress(worker.sgd, worker.stream, training.table.rounds[0], [])
    assert worker.sgd.steps == 0
