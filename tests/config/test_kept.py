"""Kept files are made once, by whoever comes first, and again where they are damaged."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kdlab.config.kept import key_of, load_or_create
from kdlab.config.seal import check, damage
from kdlab.data.encoded.index import keep_arrays

ARRAY = np.arange(12).reshape(3, 4)


def array_in(folder, calls):
    def make():
        calls.append(folder)
        keep_arrays(folder, {"numbers": ARRAY}, {"about": "twelve"})
        return np.load(folder / "numbers.npy")

    def find():
        intact = damage(folder, hashes=True) is None
        return np.load(folder / "numbers.npy") if intact else None

    return load_or_create(folder, find, make)


def test_of_many_who_come_at_once_one_makes_it(tmp_path):
    calls = []
    with ThreadPoolExecutor(8) as pool:
        arrays = list(pool.map(lambda _: array_in(tmp_path / "kept", calls), range(8)))
    assert len(calls) == 1
    assert all(np.array_equal(array, ARRAY) for array in arrays)
    assert check(tmp_path / "kept", hashes=True) == {"about": "twelve"}


def test_what_is_damaged_is_made_again_without_what_lay_beside_it(tmp_path):
    calls = []
    folder = tmp_path / "kept"
    array_in(folder, calls)
    (folder / "numbers.npy").write_bytes(b"another")
    (folder / "beside").write_text("left by a version before")
    assert np.array_equal(array_in(folder, calls), ARRAY)
    assert len(calls) == 2
    assert not (folder / "beside").exists()


def test_a_key_follows_from_its_facts_alone_and_takes_any_name_of_a_file():
    assert key_of("a") == key_of(b"a") != key_of("b")
    assert len(key_of("caf\udce9.jpg")) == 16
