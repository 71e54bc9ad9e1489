"""Follows a sweep's events into MLflow, in a process of its own beside it."""

import os

from kdlab.supervision.children import configured
from kdlab.tracking.follow import Followed, follow
from kdlab.tracking.sync import quiet


def main() -> None:
    config = configured(Followed)
    os.nice(10)  # trials come first
    quiet()
    from kdlab.tracking.sweep import SweepWriter  # after nice: 2 s of import

    follow(SweepWriter(config.folder))


if __name__ == "__main__":
    main()
