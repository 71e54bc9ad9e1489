"""Ways to compute a network that is only asked: the same answers, in less time.

`engine` says what one is, `choose` measures those that a machine has and holds them to the network
itself; the other modules are one engine each, or two that belong together.
"""

from kdlab.models.engines.choose import ChosenEngine, Trial, choose, installed
from kdlab.models.engines.engine import Asked, Engine, EngineUnusable, Precision

__all__ = [
    "Asked",
    "ChosenEngine",
    "Engine",
    "EngineUnusable",
    "Precision",
    "Trial",
    "choose",
    "installed",
]
