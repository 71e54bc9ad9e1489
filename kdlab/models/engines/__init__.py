"""Ways to compute a network that is only asked: the same answers, in less time.

`engine` says what one is, `choose` measures those that a machine has and holds them to the network
itself; the other modules are one engine each, or two that belong together.
"""

from kdlab.models.engines.choose import Choice, Trial, choose
from kdlab.models.engines.engine import Asked, Engine, Precision, Unusable, installed

__all__ = [
    "Asked",
    "Choice",
    "Engine",
    "Precision",
    "Trial",
    "Unusable",
    "choose",
    "installed",
]
