"""The layerwise baseline: which task is whose."""

import random

import pytest

from kdlab.papers.pipe_bd.layerwise import packed


def of(times, **more):
    return packed(len(times), 2, lambda b, d: times[b], lambda b, d: times[b], **more).tasks


def test_the_longest_task_is_first_where_it_is_done_soonest():
    assert of([1.0, 5.0, 4.0, 3.0]) == ((1, 0), (2, 3))


@pytest.mark.parametrize("seed", range(20))
def test_blocks_that_are_alike_are_packed_alike_whatever_the_noise_of_the_profile(seed):
    """VGG has several of one shape: which of them is measured to be the longest is chance."""
    chance, true = random.Random(seed), [4.0, 4.0, 4.0, 2.0, 2.0, 1.0]
    noisy = [t * chance.uniform(0.99, 1.01) for t in true]
    assert of(noisy, error=0.05) == of(true, error=0.05) == ((0, 2, 5), (1, 3, 4))
