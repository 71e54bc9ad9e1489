"""Follows a sweep's events into MLflow, in a process of its own beside it."""

import os
from pathlib import Path

from kdlab.cluster.children import configured
from kdlab.tracking.follow import follow
from kdlab.tracking.sync import quiet


def main() -> None:
    config = configured()
    os.nice(10)  # trials come first
    quiet()
    from kdlab.tracking.sweep import SweepWriter  # after nice: 2 s of import

    follow(SweepWriter(Path(config["sweep"])))


if __name__ == "__main__":
    main()
