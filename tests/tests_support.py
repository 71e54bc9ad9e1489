"""Small things that several test modules need."""

import time


def trained_ids(batches, epoch):
    """All ids of one epoch, repeats kept."""
    return [int(i) for e, ids in batches if e == epoch for i in ids]


def until(condition, seconds=90.0, every_s=0.02):
    """What a condition comes to; polled, the deadline is generous and no test depends on it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(every_s)  # between looks
    return found
