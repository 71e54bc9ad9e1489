"""How sure a classifier is where it is right and where it is wrong."""

import numpy as np
from numpy.typing import NDArray

from kdlab.report.chart import Panel

_BINS = 20


def confidence_histogram(
    title: str, confidence: NDArray[np.floating], right: NDArray[np.bool_]
) -> Panel:
    """Images by their largest probability.

    Args:
        title: of the panel.
        confidence: largest probability of each image, 0 to 1.
        right: whether it is right.
    """
    edges = np.linspace(0, 1, _BINS + 1)
    bars = {
        name: [(100 * k / _BINS, float(n)) for k, n in enumerate(counts)]
        for name, own in (("right", right), ("wrong", ~right))
        for counts in [np.histogram(confidence[own], edges)[0]]
    }
    return Panel(title, bars, across="confidence, %", unit="images", bars=True)
