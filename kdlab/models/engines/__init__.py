"""Faster ways to compute a network at inference, with the same answers.

`engine` defines one, `choose` measures those of a machine and checks them against the network,
`in_use` checks the chosen one on real requests too, `remembered` keeps the choice for the next
teacher; the other modules have one engine each, or two that belong together.
"""

from kdlab.models.engines.choose import ChosenEngine, Trial, available_engines, choose
from kdlab.models.engines.engine import Engine, EngineUnusable, Precision, Predict
from kdlab.models.engines.in_use import EngineInUse
from kdlab.models.engines.remembered import forget, recall, remember

__all__ = [
    "ChosenEngine",
    "Engine",
    "EngineInUse",
    "EngineUnusable",
    "Precision",
    "Predict",
    "Trial",
    "available_engines",
    "choose",
    "forget",
    "recall",
    "remember",
]
