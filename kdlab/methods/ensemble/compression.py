"""Mean outputs of several local models, and compression by them (Algorithm 2)."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kdlab.data.plan import BatchPlan
from kdlab.data.samples import PlannedSamples, Subset
from kdlab.errors import KdlabError
from kdlab.losses.local import accelerated_compression
from kdlab.methods.ensemble.exchange import ModelFile
from kdlab.methods.ensemble.local_job import LocalJob, WorkParts
from kdlab.methods.ensemble.local_sgd import LocalSgd
from kdlab.methods.ensemble.relabel import Relabelled, relabel
from kdlab.methods.ensemble.stream import BatchPlace, Stream
from kdlab.papers.ec_dnn.metrics import check_ensemble
from kdlab.papers.ec_dnn.round_schedule import Round, RoundSchedule
from kdlab.soft_labels.source import Batch
from kdlab.train.aggregation.kind import AggregationSpec
from kdlab.train.compression.kind import CompressionSpec


def mean_outputs(
    sgd: LocalSgd,
    places: Sequence[BatchPlace],
    samples: PlannedSamples,
    models: Sequence[ModelFile],
) -> tuple[Relabelled, float]:
    """Average the outputs of these models on some batches; return the seconds of it too.

    Raises:
        Diverged: the loss of a model is not finite.
    """
    job = sgd.job
    busy, rows = sgd.cpu(), job.recipe.evaluate_batch
    outputs = relabel(places, samples, models, job.scratch, rows, sgd.alive)
    sgd.charge_forward(outputs.computed)
    seconds = sgd.cpu() - busy
    # A model that its last step broke has not raised this itself.
    if not all(map(math.isfinite, outputs.model_losses)):
        raise sgd.diverged(f"The losses of the local models are {outputs.model_losses}")
    return outputs, seconds


def others_bytes(job: LocalJob, models: Sequence[ModelFile]) -> int:
    return sum(f.bytes for f in models if f.worker != job.worker)


def planned_rows(
    plan: BatchPlan, table: RoundSchedule, aggregation: AggregationSpec
) -> int:
    """Count the samples that a worker with these batches trains on, compressions included."""
    if aggregation.compresses_in_line:
        return _rows(plan, table.steps)
    apart = replace(plan, ids=plan.ids[: _count_apart(plan, aggregation)])
    compressing = sum(_rows(apart, round_.compress_steps) for round_ in table.rounds)
    return _rows(plan, table.iterations) + compressing


def _rows(plan: BatchPlan, batches: int) -> int:
    epochs, rest = divmod(batches, len(sizes := plan.sizes(0)))
    return epochs * sum(sizes) + sum(sizes[:rest])


def _count_apart(plan: BatchPlan, aggregation: AggregationSpec) -> int:
    """Count the images to compress on: all of them where nothing is compressed."""
    spec = aggregation.compressing
    mu = 1.0 if spec is None else spec.mu
    return max(min(plan.batch, len(plan.ids)), round(mu * len(plan.ids)))


def compress(
    sgd: LocalSgd, trained: Stream, round_: Round, models: Sequence[ModelFile]
) -> WorkParts:
    """Relabel, then train p iterations on Eq. 6 from the local weights (Algorithm 2).

    With mu = 1 the batches are the next ones of `trained`, the stream of local training.
    """
    job, spec = sgd.job, sgd.job.aggregation.compressing
    if spec is None or not round_.compress_steps:
        return WorkParts()
    stream = trained if spec.in_line else _stream_apart(job, spec, round_)
    places = stream.ahead(round_.compress_steps)
    outputs, relabel_s = mean_outputs(sgd, places, stream.samples, models)
    try:
        check_ensemble(outputs.loss, outputs.model_losses)
    except ValueError as error:
        raise KdlabError(
            f"Round {round_.number}, worker {job.worker}: {error}. The pseudo labels do not "
            "belong to the images, so none was trained on. This is a defect of kdlab, or of "
            "a model whose outputs are not class scores."
        ) from error
    busy, samples = sgd.cpu(), 0
    sgd.model.train()
    for number, place in enumerate(places):
        ids = place.ids
        views = torch.from_numpy(job.samples.views(ids, place.epoch))
        labels = torch.from_numpy(job.samples.labels(ids))
        pseudo = outputs.batch_rows(number, len(ids)).to(sgd.device)

        def loss(
            scores: Tensor, hard: Tensor, rows: slice, pseudo: Tensor = pseudo
        ) -> Tensor:
            beta = round_.compression_weight
            return accelerated_compression(scores, hard, pseudo[rows], beta)

        sgd.step(Batch(place.index, ids, views, labels, None), loss)
        samples += len(ids)
        sgd.alive()
    spec.reduce(sgd.model)
    if stream is trained:
        trained.taken += len(places)
    return WorkParts(
        samples=samples,
        relabel_s=relabel_s,
        compress_s=sgd.cpu() - busy,
        fetched_bytes=others_bytes(job, models),
        ensemble_loss=outputs.loss,
        model_losses=tuple(outputs.model_losses),
    )


def _stream_apart(job: LocalJob, spec: CompressionSpec, round_: Round) -> Stream:
    """Make a stream of batches from a share mu < 1 of the local data."""
    samples = job.samples
    number = round_.number if spec.subset == "drawn" else 0
    count = _count_apart(samples.plan, job.aggregation)
    subset = Subset(job.seed + 7919 * (job.worker + 1), number, count)
    plan = BatchPlan(
        subset.draw(samples.plan.ids),
        batch=samples.plan.batch,
        seed=job.seed + job.worker,
        epochs=round_.compress_steps,
        smallest=samples.plan.smallest,
    )
    apart = replace(samples, plan=plan, subset=subset)
    # Its own views: epochs that local training never reaches.
    first = (round_.number + 1) * 10**6
    return Stream(apart, first * plan.batches)
