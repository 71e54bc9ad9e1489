"""The real torchvision readers on small files of the real formats; nothing is downloaded."""

import gzip
import hashlib
import pickle
import struct

import numpy as np
import pytest
import torchvision

from kdlab.data.cifar10 import Cifar10
from kdlab.data.cifar100 import Cifar100
from kdlab.data.fashion_mnist import FashionMnist
from kdlab.errors import DataError


@pytest.mark.parametrize("make", [Cifar10, Cifar100, FashionMnist])
def test_a_missing_set_names_the_path_and_the_way_out(tmp_path, make):
    with pytest.raises(DataError) as caught:
        make(root=str(tmp_path)).load()
    assert str(tmp_path) in str(caught.value)
    assert "download" in str(caught.value)


def test_cifar10_in_its_real_format(tmp_path, monkeypatch):
    """Five training batches and a test batch as the archive has them, 20 images each."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    chance = np.random.default_rng(0)

    def batch(name):
        data = chance.integers(0, 256, (20, 3072), dtype=np.uint8)
        entry = {"data": data, "labels": [i % 10 for i in range(20)]}
        raw = pickle.dumps(entry)
        (folder / name).write_bytes(raw)
        return name, hashlib.md5(raw).hexdigest(), data

    train = [batch(f"data_batch_{i}") for i in range(1, 6)]
    test = batch("test_batch")
    meta = pickle.dumps({"label_names": [f"class{i}" for i in range(10)]})
    (folder / "batches.meta").write_bytes(meta)
    # The real hashes are those of the full archive; these are of the small files here.
    reader = torchvision.datasets.CIFAR10
    monkeypatch.setattr(reader, "train_list", [[n, h] for n, h, _ in train])
    monkeypatch.setattr(reader, "test_list", [list(test[:2])])
    monkeypatch.setattr(
        reader,
        "meta",
        {
            "filename": "batches.meta",
            "key": "label_names",
            "md5": hashlib.md5(meta).hexdigest(),
        },
    )
    data = Cifar10(root=str(tmp_path)).load()
    assert data.classes[3] == "class3"
    assert (len(data.train), len(data.validation), len(data.test)) == (90, 10, 20)
    assert np.array_equal(data.inputs[0].ravel(), train[0][2][0])
    assert np.array_equal(data.inputs[data.test[0]].ravel(), test[2][0])


def test_fashion_mnist_in_its_real_format(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, count in (("train", 30), ("t10k", 10)):
        pixels = (np.arange(count * 784) % 251).astype(np.uint8)
        images = struct.pack(">IIII", 0x803, count, 28, 28) + pixels.tobytes()
        labels = struct.pack(">II", 0x801, count) + bytes(i % 10 for i in range(count))
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)
        (raw / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    data = FashionMnist(root=str(tmp_path)).load()
    assert data.shape == (1, 28, 28)
    assert len(data.test) == 10
    assert list(data.inputs[0, 0, 0, :3]) == [0, 1, 2]
