"""The bundled teacher finds copies and wrong labels among real photos."""

from dataclasses import replace

import numpy as np
import pytest

import kdlab
from kdlab.checks.data import DataFacts
from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.run.outputs.lookalikes import looked_closely
from kdlab.train.teacher import TeacherSpec, prepared


def changed_photo(photo, how):
    """A slightly changed copy of a photo, (C, H, W) uint8."""
    if how == "mirror":
        return photo[:, :, ::-1]
    if how == "bright":
        return np.minimum(255, photo * 1.12).astype(np.uint8)
    noise = np.random.default_rng(1).normal(0, 6, photo.shape)
    return np.clip(photo + noise, 0, 255).astype(np.uint8)


@pytest.mark.long
def test_copies_and_wrong_labels_among_real_photos(kdlab_home):
    few = ("data.train_samples=900", "data.test_samples=200", "data.kept=decoded")
    clean = kdlab.load("clothes/quickstart", *few).spec.data.load()
    teacher = prepared(construct(TeacherSpec, compose_card("teachers/clothes_resnet")))
    network = teacher.build(len(clean.classes), clean.shape[0])
    before = looked_closely(clean, DataFacts.from_data(clean), network)

    chance, inputs, labels = (
        np.random.default_rng(0),
        clean.inputs.copy(),
        clean.labels.copy(),
    )
    copied = chance.choice(clean.train, 12, replace=False)
    into = chance.choice(clean.test, 12, replace=False)
    for k, (of, to) in enumerate(zip(copied, into, strict=True)):
        inputs[to] = changed_photo(inputs[of], ("mirror", "bright", "noise")[k % 3])
        labels[to] = labels[of]
    wrong = chance.choice(np.setdiff1d(clean.train, copied), 12, replace=False)
    labels[wrong] = (labels[wrong] + chance.integers(1, 10, 12)) % 10
    data = replace(clean, inputs=inputs, labels=labels)
    facts = looked_closely(data, DataFacts.from_data(data), network)

    pairs = {(f"image {to}", f"image {of}") for of, to in zip(copied, into, strict=True)}
    assert len(pairs & set(facts.alike)) >= 11
    assert len(set(facts.alike) - pairs) <= len(before.alike)
    named = {line.split(" is ")[0] for line in facts.suspects}
    assert len(named & {f"image {k}" for k in wrong}) >= 6
    others = named - {f"image {k}" for k in wrong}
    # Few images with right labels are named; some of these are doubtful, too.
    assert len(others) <= 0.04 * 1100
    assert all("nearest images, teacher" in line for line in facts.suspects)
