"""Small things that several test modules need."""


def trained_ids(batches, epoch):
    """All ids of one epoch, repeats kept."""
    return [int(i) for e, ids in batches if e == epoch for i in ids]
