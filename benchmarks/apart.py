"""Runs of a benchmark are nobody's: they go to a folder of their own."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def runs_apart() -> Iterator[None]:
    """Run folders go to a temporary folder, and not to those of whoever measures."""
    before = os.environ.get("KDLAB_RUNS")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KDLAB_RUNS"] = folder
        try:
            yield
        finally:
            del os.environ["KDLAB_RUNS"]
            if before is not None:
                os.environ["KDLAB_RUNS"] = before
