"""Ways to compute a network that is only asked: the same answers, in less time.

`engine` says what one is, `choose` measures those that a machine has and holds them to the network
itself, `in_use` holds the chosen one to it on real requests too, `remembered` spares the next
teacher all of that; the other modules are one engine each, or two that belong together.
"""

from kdlab.models.engines.choose import ChosenEngine, Trial, choose, installed
from kdlab.models.engines.engine import Asked, Engine, EngineUnusable, Precision
from kdlab.models.engines.in_use import EngineInUse
from kdlab.models.engines.remembered import forget, recall, remember

__all__ = [
    "Asked",
    "ChosenEngine",
    "Engine",
    "EngineInUse",
    "EngineUnusable",
    "Precision",
    "Trial",
    "choose",
    "forget",
    "installed",
    "recall",
    "remember",
]
