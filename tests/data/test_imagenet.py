"""ImageNet's three archives, as image-net.org packs them: never unpacked."""

import io
import os
import tarfile

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from kdlab.data.imagenet import ImageNet
from kdlab.errors import DataError

# In the order of their WordNet ids; the devkit numbers them otherwise. Two are called alike.
WORDS = {
    "n01440764": "tench, Tinca tinca",
    "n02012849": "crane",
    "n03126707": "crane",
    "n09999999": "bird",  # an inner node of the tree: no class
}
NUMBERS = {"n01440764": 3, "n02012849": 1, "n03126707": 2, "n09999999": 4}
TRUTH = [2, 3, 1, 1]


def jpeg(shade):
    raw = io.BytesIO()
    Image.new("RGB", (40, 30), (shade, shade, shade)).save(raw, "JPEG")
    return raw.getvalue()


def add(archive, name, raw):
    member = tarfile.TarInfo(name)
    member.size = len(raw)
    archive.addfile(member, io.BytesIO(raw))


def tar(files, mode="w"):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode=mode) as archive:
        for name, content in files.items():
            add(archive, name, content)
    return raw.getvalue()


@pytest.fixture
def archives(tmp_path, kdlab_home):
    folder = tmp_path / "imagenet"
    folder.mkdir()
    classes = {
        f"{wnid}.tar": tar({f"{wnid}_{i}.JPEG": jpeg(20 * k + i) for i in range(3)})
        for k, wnid in enumerate(list(WORDS)[:3])
    }
    (folder / "ILSVRC2012_img_train.tar").write_bytes(tar(classes))
    images = {f"ILSVRC2012_val_{i:08}.JPEG": jpeg(200 + i) for i in range(1, 5)}
    (folder / "ILSVRC2012_img_val.tar").write_bytes(tar(images))
    kinds = [("ILSVRC2012_ID", "i4"), ("WNID", "O"), ("words", "O"), ("num_children", "i4")]
    synsets = np.array(
        [(NUMBERS[w], w, words, int(w == "n09999999")) for w, words in WORDS.items()], kinds
    )
    meta = io.BytesIO()
    savemat(meta, {"synsets": synsets})
    devkit = {
        "ILSVRC2012_devkit_t12/data/meta.mat": meta.getvalue(),
        "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt": "\n".join(
            map(str, TRUTH)
        ).encode(),
    }
    (folder / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(tar(devkit, "w:gz"))
    return folder


def test_images_are_read_inside_the_tar_of_each_class(archives):
    data = ImageNet(
        root=str(archives), size=24, kept="encoded", validation_share=0.34
    ).load()
    assert data.classes == ("tench", "crane (n02012849)", "crane (n03126707)")
    assert (len(data.train), len(data.validation), len(data.test)) == (6, 3, 4)
    every = np.concatenate([data.train, data.validation])
    shades = data.inputs[every].mean((1, 2, 3))
    assert (
        np.abs(shades - [20 * data.labels[k] + n for n, k in enumerate(every)]).max() < 20
    )
    assert sorted(data.labels[every]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert list(data.labels[data.test]) == [2, 0, 1, 1]  # of numbers 2, 3, 1, 1
    assert np.abs(data.inputs[data.test].mean((1, 2, 3)) - [201, 202, 203, 204]).max() < 2


def test_folders_as_torchvision_unpacks_them_are_the_same_set(archives, tmp_path):
    for wnid in list(WORDS)[:3]:
        for part, count in (("train", 3), ("val", 1)):
            folder = tmp_path / "unpacked" / part / wnid
            folder.mkdir(parents=True)
            for i in range(count):
                (folder / f"{i}.JPEG").write_bytes(jpeg(10 * i))
    data = ImageNet(root=str(tmp_path / "unpacked"), size=24, kept="encoded").load()
    assert data.classes == tuple(list(WORDS)[:3])  # without a devkit
    assert len(data.test) == 3
    devkit = "ILSVRC2012_devkit_t12.tar.gz"
    (tmp_path / "unpacked" / devkit).write_bytes((archives / devkit).read_bytes())
    os.utime(tmp_path / "unpacked", ns=(1, 1))  # it is indexed anew when a folder changes
    named = ImageNet(root=str(tmp_path / "unpacked"), size=24, kept="encoded").load()
    assert named.classes[0] == "tench"


def test_what_is_missing_is_named_with_the_way_out(archives):
    (archives / "ILSVRC2012_img_val.tar").unlink()
    with pytest.raises(DataError, match=r"lacks ILSVRC2012_img_val\.tar.*licence"):
        ImageNet(root=str(archives)).load()
