"""A simulation as a trial: its metrics, in milliseconds."""

from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.config.spec import Spec
from kdlab.errors import BadInput
from kdlab.simulate.edl_dist import EdlDist
from kdlab.simulate.kind import SimulationSpec
from kdlab.simulate.pool_simulation import Simulation
from kdlab.tuning.trial_workers import TrialEnded, TrialOrder


def simulate(order: TrialOrder) -> TrialEnded:
    """Within this process."""
    spec = construct(SimulationSpec, from_dict(order.simulation or {}, "trial"))
    return TrialEnded(order.number, "finished", result=simulated(check(spec)))


def simulated(spec: EdlDist) -> dict[str, float]:
    """Figures over all cases: the smallest share of N-training's rate, the maximum of all else."""
    found = [Simulation(spec, case).run() for case in spec.cases]
    alone = [o.case.students * o.case.student.samples_per_second for o in found]
    rates = [outcome.samples_per_second for outcome in found]
    return {
        "samples_per_second": sum(rates),
        "of_n_training": min(r / a for r, a in zip(rates, alone, strict=True)),
        "teachers": sum(outcome.case.teachers for outcome in found),
        "teachers_used": sum(outcome.teachers_used for outcome in found),
        "volume_max": max(outcome.volume_max for outcome in found),
        "resends": sum(outcome.resends for outcome in found),
        "samples_lost": sum(outcome.lost for outcome in found),
    }


def check(spec: Spec) -> EdlDist:
    """The same, if it has thresholds to tune; BadInput where it has none."""
    if not isinstance(spec, EdlDist):
        raise BadInput(
            f"{spec.component} cannot be swept; simulations of simulate/edl_dist can."
        )
    return spec
