"""A deployment names weights and data; a teacher must prove that it has the same."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from kdlab.cluster.deployment import DeployedModel, Deployment
from kdlab.cluster.teachers.probe import data_difference, difference_of, identity_of
from kdlab.data.image_folder import ImageFolder
from kdlab.errors import TeacherRefused


@pytest.fixture
def folder(tmp_path, kdlab_home):
    chance = np.random.default_rng(0)
    root = tmp_path / "photos"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for number in range(40):
            pixels = chance.integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number:03}.png")
    return root


def deployed(loaded, spec, **changed):
    return Deployment(
        **{
            "members": (
                DeployedModel(model={"type": "models/patch_net"}, sha256="a", weight=1.0),
            ),
            "teacher": "t",
            "num_classes": 2,
            "shape": loaded.shape,
            "batch": 20,
            "data": spec.to_dict(),
            "identity": identity_of(loaded),
            "by_reference": True,
            "components": {},
        }
        | changed
    )


def test_a_teacher_whose_folder_lacks_one_file_is_refused(folder, tmp_path):
    """The defect B1: the first sixteen views are alike, and 81 % of the ids are others."""
    spec = ImageFolder(root=str(folder), size=8)
    data = spec.load()
    copied = tmp_path / "elsewhere" / "photos"
    shutil.copytree(folder, copied)
    sixteenth = data.train[15]
    lacking = sorted(copied.glob("*/*.png"))[int(sixteenth) + 5]
    lacking.unlink()
    there = replace(spec, root=str(copied)).load()
    assert np.array_equal(data.train[:16], there.train[:16])
    mine, theirs = (d.views(data.train[:16], 0) for d in (data, there))
    assert np.array_equal(mine, theirs)  # the old proof saw no difference
    deployment = deployed(data, spec, data=replace(spec, root=str(copied)).to_dict())
    with pytest.raises(TeacherRefused, match="it has 79 images, the student 80"):
        deployment.load_data()


def test_other_pixels_labels_classes_and_augmentation_are_told_apart(folder):
    data = ImageFolder(root=str(folder), size=8).load()
    same = identity_of(data)
    assert data_difference(same, replace(same)) == ""
    assert "classes" in data_difference(replace(same, classes=("dog", "cat")), same)
    assert "digest" in data_difference(replace(same, digest="0"), same)
    assert "augments" in data_difference(replace(same, augment="0"), same)
    assert replace(same, made_by="numpy 1") != same  # said to people, and to nobody else
    assert "other views" in data_difference(replace(same, views="0"), same)


def test_students_of_any_batch_loss_or_inputs_share_a_deployment(folder):
    """The defect B10: train.batch=32 instead of 20 was another deployment."""
    spec = ImageFolder(root=str(folder), size=8)
    data = spec.load()
    deployment = deployed(data, spec)
    cell = {"losses/mine": {"source": "...", "sha256": "b"}}
    for change in ({"batch": 32}, {"by_reference": False}, {"components": cell}):
        assert replace(deployment, **change).fingerprint == deployment.fingerprint
    model = {"models/patch_net": {"source": "...", "sha256": "c"}}
    other_weights = (replace(deployment.members[0], sha256="other"),)
    for change in ({"components": model}, {"members": other_weights}, {"num_classes": 3}):
        assert replace(deployment, **change).fingerprint != deployment.fingerprint


def test_a_deployment_survives_the_wire(folder):
    spec = ImageFolder(root=str(folder), size=8)
    deployment = deployed(spec.load(), spec)
    assert Deployment.from_json(deployment.to_json()) == deployment
    assert Deployment.from_json(deployment.to_json()).fingerprint == deployment.fingerprint


def test_answers_of_one_model_on_other_devices_agree_and_others_do_not():
    logits = np.random.default_rng(0).normal(0, 3, (8, 10)).astype(np.float32)
    half = logits.astype(np.float16).astype(np.float32)
    assert difference_of(half, logits) == 0
    assert difference_of(logits + 7, logits) == 0  # the same probabilities
    assert difference_of(np.roll(logits, 1, axis=1), logits) > 0.5
    assert difference_of(logits[:, :9], logits) > 0


def test_one_wrong_row_of_many_is_a_difference():
    """One of 1,000 was invisible: the root mean square of all of them stays below 5 %."""
    logits = np.random.default_rng(0).normal(0, 3, (2000, 10)).astype(np.float32)
    wrong = logits.copy()
    wrong[7] = logits[8]
    assert difference_of(wrong, logits) > 0.5
    noise = np.random.default_rng(1).normal(0, 0.1, logits.shape).astype(np.float32)
    assert difference_of(logits + noise, logits) == 0


def test_labels_and_pools_of_an_engine_are_its_own(folder):
    spec = ImageFolder(root=str(folder), size=8)
    eager = deployed(spec.load(), spec)
    chosen = eager.computed_by("auto")
    assert chosen.fingerprint != eager.fingerprint
    assert chosen.teacher != eager.teacher
    assert eager.computed_by("eager") is eager
    assert Deployment.from_json(chosen.to_json()).engine == "auto"
