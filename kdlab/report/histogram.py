"""Histogram of a classifier's confidence, for correct and wrong predictions."""

import numpy as np
from numpy.typing import NDArray

from kdlab.report.chart import Panel

_BINS = 20


def confidence_histogram(
    title: str, confidence: NDArray[np.floating], right: NDArray[np.bool_]
) -> Panel:
    """Count images by their largest probability.

    Args:
        title: title of the panel.
        confidence: (N,) largest probability of each image, 0 to 1.
        right: (N,) whether the prediction is correct.
    """
    edges = np.linspace(0, 1, _BINS + 1)
    bars = {
        name: [(100 * k / _BINS, float(n)) for k, n in enumerate(counts)]
        for name, selected in (("right", right), ("wrong", ~right))
        for counts in [np.histogram(confidence[selected], edges)[0]]
    }
    return Panel(title, bars, across="confidence, %", unit="images", bars=True)
