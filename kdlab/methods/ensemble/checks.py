"""What can be wrong with the workers, data and timetable of an ensemble, before a start."""

from kdlab.data.samples import PlannedSamples
from kdlab.errors import BadInput
from kdlab.methods.ensemble.ensemble_run import EnsembleRun
from kdlab.train.aggregation.ensemble import EnsembleAggregation
from kdlab.train.aggregation.weights import WeightAggregation


def check(own: EnsembleRun) -> None:
    """All that can be wrong with workers, data and timetable, before a start.

    Raises:
        BadInput: what, in one message.
    """
    _check_weights(own)
    _check_sizes([own.samples(k) for k in range(own.workers)])
    name, table = own.member.source_name, own.timetable
    aggregation = own.variant.aggregation
    if table.tau is not None and table.tau > table.iterations:
        raise BadInput(
            f"{name}: tau is {table.tau}, and each worker has {table.iterations} local "
            "iterations: no communication would happen before the end. Lower tau, or train "
            "longer."
        )
    if not isinstance(aggregation, EnsembleAggregation) or aggregation.compression is None:
        return
    p = aggregation.compression.p_iterations
    if p is not None and p > table.iterations:
        raise BadInput(
            f"{name}: compression.p_iterations is {p}, longer than the whole training of "
            f"{table.iterations} iterations. Lower it."
        )


def _check_weights(own: EnsembleRun) -> None:
    """What an aggregation of weights needs besides weights."""
    name, aggregation = own.member.source_name, own.variant.aggregation
    if not isinstance(aggregation, WeightAggregation):
        return
    if aggregation.needs_validation and not len(own.setup.data.validation):
        raise BadInput(
            f"{name}: {aggregation.component} chooses by validation images, and "
            f"{own.setup.data.name} has none. Set data.validation_share."
        )
    rounds, parts = len(own.timetable.rounds), aggregation.parts
    if rounds < parts:
        raise BadInput(
            f"{name}: {parts} fragments take turns, and {own.timetable.iterations} iterations "
            f"have {rounds} communications: some would never be exchanged. Lower tau "
            f"({aggregation.tau}) or fragments, or train longer."
        )


def _check_sizes(parts: list[PlannedSamples]) -> None:
    """All do as many iterations as the smallest local data set allows."""
    sizes = [len(part.plan.ids) for part in parts]
    if min(sizes) * 20 < max(sizes):
        raise BadInput(
            f"The local data sets have {min(sizes)} to {max(sizes)} images; all workers do as "
            "many iterations as the smallest allows, so nearly all data would go unused. Raise "
            "method.shards.concentration."
        )
