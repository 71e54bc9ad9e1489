"""Simulations as trials, which take milliseconds."""

from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.config.spec import Spec
from kdlab.errors import BadInput
from kdlab.simulate.edl_dist import EdlDist
from kdlab.simulate.kind import SimulationSpec
from kdlab.simulate.pool_simulation import Simulation
from kdlab.tuning.trial_workers import TrialEnded, TrialOrder


def simulate(order: TrialOrder) -> TrialEnded:
    """Run a trial's simulation in this process."""
    spec = construct(SimulationSpec, from_dict(order.simulation or {}, "trial"))
    return TrialEnded(order.number, "finished", result=simulated(check(spec)))


def simulated(spec: EdlDist) -> dict[str, float]:
    """Return metrics over all cases; `of_n_training` is the minimum, `volume_max` the maximum."""
    outcomes = [Simulation(spec, case).run() for case in spec.cases]
    n_training = [o.case.students * o.case.student.samples_per_second for o in outcomes]
    rates = [outcome.samples_per_second for outcome in outcomes]
    return {
        "samples_per_second": sum(rates),
        "of_n_training": min(r / a for r, a in zip(rates, n_training, strict=True)),
        "teachers": sum(outcome.case.teachers for outcome in outcomes),
        "teachers_used": sum(outcome.teachers_used for outcome in outcomes),
        "volume_max": max(outcome.volume_max for outcome in outcomes),
        "resends": sum(outcome.resends for outcome in outcomes),
        "samples_lost": sum(outcome.lost for outcome in outcomes),
    }


def check(spec: Spec) -> EdlDist:
    """Return the spec if it has thresholds to tune; else raise BadInput."""
    if not isinstance(spec, EdlDist):
        raise BadInput(
            f"{spec.component} has nothing to tune; use a simulation of simulate/edl_dist."
        )
    return spec
