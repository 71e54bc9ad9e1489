"""The base of all simulations: what `kdlab simulate` takes."""

from kdlab.config.spec import Spec


class SimulationSpec(Spec):
    """A table or a plan on a simulated clock."""
