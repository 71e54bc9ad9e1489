"""Conformance tests of sources: properties of every SoftLabelSource."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kdlab.soft_labels.source import Samples, SoftLabelSource


def check_source(
    make: Callable[[dict[str, Any]], SoftLabelSource],
    samples: Samples,
    *,
    epochs: int,
    soft: bool = True,
    same_views: bool = True,
) -> None:
    """Check a source; raise AssertionError with the property that does not hold.

    Args:
        make: builds the source for a start position {"epoch": e, "done": [batches]}.
        samples: the samples of the source.
        epochs: number of epochs of the plan; at least 2.
        soft: True where the source delivers soft labels.
        same_views: True where epoch e shows view e (a cache may repeat views).
    """
    source = make({"epoch": 0, "done": []})
    try:
        for epoch in range(epochs):
            _check_epoch(source, samples, epoch, set(), soft=soft, same_views=same_views)
    finally:
        source.close()
        source.close()  # closing twice is allowed
    for done in ({0, 2}, set(range(len(samples.batches(0))))):
        resumed = make({"epoch": epochs - 2, "done": sorted(done)})
        try:
            rest = {epochs - 2: done, epochs - 1: set[int]()}
            for epoch, finished in rest.items():
                _check_epoch(
                    resumed, samples, epoch, finished, soft=soft, same_views=same_views
                )
        finally:
            resumed.close()
    ended = make({"epoch": epochs - 1, "done": list(range(len(samples.batches(0))))})
    ended.close()  # nothing is left to deliver: it must not wait for anything


def _check_epoch(
    source: SoftLabelSource,
    samples: Samples,
    epoch: int,
    done: set[int],
    *,
    soft: bool,
    same_views: bool,
) -> None:
    plan = samples.batches(epoch)
    seen: list[int] = []
    for batch in source.epoch(epoch, done):
        seen.append(batch.index)
        where = f"epoch {epoch}, batch {batch.index}"
        assert np.array_equal(batch.ids, plan[batch.index]), (
            f"{where}: other ids than planned"
        )
        labels = samples.labels(batch.ids)
        assert np.array_equal(batch.labels.numpy(), labels), f"{where}: wrong hard labels"
        assert batch.views.dtype == torch.uint8, f"{where}: views are {batch.views.dtype}"
        if same_views:
            views = samples.views(batch.ids, epoch)
            assert np.array_equal(batch.views.numpy(), views), f"{where}: another view"
        if not soft:
            assert batch.soft is None, f"{where}: unexpected soft labels"
            continue
        assert batch.soft is not None, f"{where}: no soft labels"
        shape = (len(batch.ids), samples.classes)
        assert tuple(batch.soft.shape) == shape, f"{where}: soft labels {batch.soft.shape}"
        assert torch.isfinite(batch.soft).all(), f"{where}: soft labels are not finite"
    wanted = sorted(set(range(len(plan))) - done)
    assert sorted(seen) == wanted, (
        f"epoch {epoch}: got batches {sorted(seen)}, not {wanted}"
    )
