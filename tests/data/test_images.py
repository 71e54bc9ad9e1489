import json
from dataclasses import dataclass
from itertools import product

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from kdlab.data.counter_random import permutation
from kdlab.data.digits import Digits
from kdlab.data.image_folder import ImageFolder
from kdlab.data.splits import by_class
from kdlab.data.synthetic import Synthetic
from kdlab.errors import DataError


def test_digits_are_the_real_ones_in_three_apart_splits():
    data = Digits().load()
    assert data.inputs.shape == (1797, 1, 8, 8)
    assert data.inputs.max() == 255
    assert len(data.test) == 300
    assert len(data.validation) == round(0.2 * 1497)
    everything = np.concatenate([data.train, data.validation, data.test])
    assert sorted(everything) == list(range(1797))
    for ids in (data.train, data.validation, data.test):
        share = np.bincount(data.labels[ids]) / len(ids)
        assert abs(share - 0.1).max() < 0.02


def test_digits_in_colour_and_larger():
    data = Digits(size=32, channels=3).load()
    assert data.shape == (3, 32, 32)
    assert np.array_equal(data.inputs[:, 0], data.inputs[:, 2])


def test_decoded_once_and_shared(monkeypatch, digits):
    first, spec = digits

    def fail(self, say):
        raise AssertionError("decoded again")

    monkeypatch.setattr(Digits, "decode", fail)
    again = spec.load()
    assert again.digest == first.digest
    assert not again.inputs.flags.writeable


def test_the_digest_is_of_the_pixels():
    assert Digits().load().digest != Digits(size=16).load().digest


def test_crops_that_are_resized_in_another_way_are_other_views(tmp_path):
    """Pixels of the size they had are the same; kept soft labels of the others are not."""
    for name, split, number in product(("cat", "dog"), ("train", "test"), range(4)):
        path = tmp_path / split / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (number * 60, 7, 9)).save(path)
    both = [
        ImageFolder(
            root=str(tmp_path), size=32, kept="decoded", interpolation=way, crop_pct=1.0
        ).load()
        for way in ("bilinear", "bicubic")
    ]
    assert np.array_equal(both[0].inputs, both[1].inputs)
    assert both[0].digest != both[1].digest


def test_training_samples_can_be_limited(digits):
    data, spec = digits
    assert len(data.train) == 240 == spec.train_samples
    assert np.bincount(data.labels[data.train]).min() > 20


@given(st.data())
def test_by_class_takes_the_classes_in_turn(data):
    """Compared with a plain loop over the classes."""
    labels = np.array(data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=60)))
    every = st.lists(st.sampled_from(range(len(labels))), unique=True)
    ids = np.array(sorted(data.draw(every)), np.int64)
    count, seed = data.draw(st.integers(0, len(ids))), data.draw(st.integers(0, 99))
    shuffled, place = permutation(seed, 0, ids), np.empty(len(ids))
    for label in set(labels[ids].tolist()):
        rows = np.flatnonzero(labels[shuffled] == label)
        place[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
    order = shuffled[np.argsort(place, kind="stable")]
    chosen, rest = by_class(ids, labels, count, seed)
    assert chosen.tolist() == sorted(order[:count].tolist())
    assert rest.tolist() == sorted(order[count:].tolist())


def test_by_class_keeps_shares():
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    chosen, rest = by_class(np.arange(100), labels, 20, seed=0)
    assert list(np.bincount(labels[chosen])) == [12, 6, 2]
    assert sorted([*chosen, *rest]) == list(range(100))


def test_too_large_a_set_is_refused_with_the_numbers():
    size = int((psutil.virtual_memory().total / 3 / 1000) ** 0.5) + 1
    lines = []
    with pytest.raises(
        DataError, match=r"needs .* as uint8; this machine has .* of memory"
    ):
        Synthetic(samples=1000, size=size).load(lines.append)
    assert "in host memory" in lines[0]  # the size is said before


def test_synthetic_has_the_shape_and_replays():
    data = Synthetic(samples=50, size=9, channels=2, classes=4).load()
    assert data.inputs.shape == (50, 2, 9, 9)
    assert set(np.unique(data.labels)) <= {0, 1, 2, 3}
    assert len(data.test) == 5
    assert len(np.unique(data.inputs)) > 200


@pytest.mark.parametrize("damage", ["zeroed", "cut", "digest"])
def test_damaged_decoded_images_are_decoded_again_with_one_line(
    tmp_path, monkeypatch, damage
):
    monkeypatch.setenv("KDLAB_HOME", str(tmp_path))
    spec = Synthetic(samples=50, size=9)
    before = spec.load()
    pixels_before = before.inputs.copy()  # a copy: the mapped file will be cut
    (folder,) = (p.parent for p in tmp_path.glob("data/*/meta.json"))
    pixels = folder / "inputs.npy"
    if damage == "zeroed":  # its size is right: once trained on, to 10 %, with no word
        pixels.write_bytes(bytes(pixels.stat().st_size))
    elif damage == "cut":  # once, every later run failed
        pixels.write_bytes(pixels.read_bytes()[:100])
    else:
        meta = folder / "meta.json"
        meta.write_text(meta.read_text().replace(before.digest, before.digest[::-1]))
    lines = []
    after = spec.load(lines.append, verify=True)
    assert np.array_equal(after.inputs, pixels_before)
    assert after.classes == before.classes
    assert "are damaged" in lines[0]
    assert sum("damaged" in line for line in lines) == 1
    assert not any("damaged" in line for line in _loaded(spec))


def _loaded(spec):
    lines = []
    spec.load(lines.append, verify=True)
    return lines


def test_an_interrupted_decoding_is_not_taken_for_a_data_set(kdlab_home):
    @dataclass(frozen=True, kw_only=True)
    class Fails(Synthetic):
        def identity(self):
            return "fails"

        def decode(self, say):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Fails().load()
    metas = [json.loads(p.read_text()) for p in (kdlab_home / "data").glob("*/meta.json")]
    assert all(meta["facts"]["digest"] for meta in metas)
    Fails.decode = Synthetic.decode
    assert len(Fails().load().train)  # decoded anew
