import errno
import os
import socket
from itertools import pairwise

import numpy as np
import pytest

from kdlab.cluster.reader.ring import Channel, Layout, Ring
from kdlab.errors import ClusterError, is_full

LAYOUT = Layout(slots=3, largest=5, shape=(2, 3, 3), classes=4)


def test_both_ends_see_the_same_memory():
    ring = Ring.create(LAYOUT)
    mapped = Ring(LAYOUT, ring.fd)
    for slot in range(3):
        for i, array in enumerate(ring.slot(slot)):
            array[...] = slot * 10 + i
    for slot in range(3):
        values = [float(a.max()) for a in mapped.slot(slot)]
        assert values == [slot * 10 + i for i in range(5)]
        assert all(a.min() == a.max() for a in mapped.slot(slot))


def test_figures_lie_beside_the_slots():
    ring = Ring.create(LAYOUT)
    ring.figures[:] = np.arange(LAYOUT.figures)
    for slot in range(3):
        for array in ring.slot(slot):
            array[...] = 0
    assert Ring(LAYOUT, ring.fd).figures.tolist() == list(range(LAYOUT.figures))


def test_slots_do_not_overlap_and_are_aligned():
    ring = Ring.create(LAYOUT)
    places = sorted(
        (a.__array_interface__["data"][0], a.nbytes)
        for slot in range(3)
        for a in ring.slot(slot)
    )
    for (start, size), (following, _) in pairwise(places):
        assert start + size <= following
    base = places[0][0]
    assert all((start - base) % 64 == 0 for start, _ in places)
    assert np.dtype(np.float32) == ring.slot(0).soft.dtype


def test_a_ring_that_fits_nowhere_is_refused_with_the_numbers():
    layout = Layout(slots=4, largest=1 << 20, shape=(3, 1 << 12, 1 << 12), classes=10)
    with pytest.raises(ClusterError, match=r"needs [\d.]+ MB.*soft_labels.slots"):
        Ring.create(layout)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_a_small_ring_without_room_is_of_a_full_disk(monkeypatch, number):
    """So the run says what it has saved, and how it goes on."""

    def full(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", full)
    layout = Layout(slots=4, largest=8, shape=(3, 16, 16), classes=10)
    with pytest.raises(
        ClusterError, match=r"needs 0.03 MB.*free \(.*soft_labels"
    ) as caught:
        Ring.create(layout)
    assert is_full(caught.value)


def test_channel_times_out_and_sees_the_other_end_go():
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    assert channel.receive(0.01) is None
    theirs.sendall(b'{"a": 1}\n0\n{"b"')
    assert channel.receive(1.0) == {"a": 1}
    assert channel.receive(1.0) == 0
    assert channel.receive(0.01) is None
    theirs.sendall(b": 2}\n")
    theirs.close()
    assert channel.receive(1.0) == {"b": 2}
    with pytest.raises(EOFError):
        channel.receive(1.0)
    assert not channel.send({"free": 1})
    channel.close()
