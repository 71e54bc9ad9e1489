"""Tests for your own components: the same ones kdlab's pass.

from kdlab.testing import check_loss, check_source

def test_my_loss():
    check_loss(MyLoss())

`check_source` and `check_aggregation` do so for sources of soft labels and for averages.
`replay(journal)` feeds a run's recorded events to the pure machines again.
"""

from kdlab.testing.aggregations import check_aggregation
from kdlab.testing.losses import check_loss
from kdlab.testing.replaying import Replay, replay
from kdlab.testing.sources import check_source

__all__ = ["Replay", "check_aggregation", "check_loss", "check_source", "replay"]
