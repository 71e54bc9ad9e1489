import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kdlab.data.counter_random import permutation, uniforms, words

seeds = st.integers(-(2**63), 2**63 - 1)
IDS = np.arange(1000)


@given(seeds, st.integers(0, 1000), st.integers(1, 999))
def test_a_number_depends_on_its_coordinates_alone(seed, epoch, cut):
    numbers = uniforms(seed, epoch, IDS, 3)
    assert np.array_equal(numbers[cut:], uniforms(seed, epoch, IDS[cut:], 3))
    assert np.array_equal(numbers[::-1], uniforms(seed, epoch, IDS[::-1], 3))


@given(seeds, st.integers(0, 1000))
def test_permutation_keeps_every_id(seed, epoch):
    assert np.array_equal(np.sort(permutation(seed, epoch, IDS)), IDS)


def test_values_never_change():
    """Caches and resumed runs depend on these numbers: a change is a new VERSION."""
    assert [hex(w) for w in words(1, 2, np.array([3]), 2)[0]] == FROZEN


def test_uniforms_are_uniform_and_independent():
    values = uniforms(0, 0, np.arange(20_000), 2)
    assert ((values >= 0) & (values < 1)).all()
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(values.T)[0, 1]) < 0.03
    next_epoch = uniforms(0, 1, np.arange(20_000), 1)
    assert abs(np.corrcoef(values[:, 0], next_epoch[:, 0])[0, 1]) < 0.03


FROZEN = ["0x12588d809dce88a7", "0xa67f0349b6b7d27d"]
