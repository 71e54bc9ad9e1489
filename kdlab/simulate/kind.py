"""Base class of the specs that `kdlab simulate` takes."""

from kdlab.config.spec import Spec


class SimulationSpec(Spec):
    """A table or a plan to simulate."""
