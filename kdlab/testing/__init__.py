"""Conformance tests for custom components: those that kdlab's own components pass.

from kdlab.testing import check_loss, check_source

def test_my_loss():
    check_loss(MyLoss())

`check_source` and `check_aggregation` test sources of soft labels and weight aggregations.
`replay(journal)` feeds the recorded events of a run to the pure machines again.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kdlab.testing.aggregations import check_aggregation
    from kdlab.testing.losses import check_loss
    from kdlab.testing.replaying import Replay, replay
    from kdlab.testing.sources import check_source

__all__ = ["Replay", "check_aggregation", "check_loss", "check_source", "replay"]

_MODULES = {
    "Replay": "replaying",
    "check_aggregation": "aggregations",
    "check_loss": "losses",
    "check_source": "sources",
    "replay": "replaying",
}


def __getattr__(name: str) -> object:
    """Import on first use: emulated teachers are in this package too, and need none of it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
