"""Duplicate images are found by their bytes, within a limit on how much is read."""

import numpy as np
import pytest
from PIL import Image

from kdlab.data.image_folder import ImageFolder
from kdlab.run.outputs.data_facts import facts_of


@pytest.fixture
def photos(tmp_path, kdlab_home):
    """A folder with a training image in test, and an image in two classes."""
    chance = np.random.default_rng(0)
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            for k in range(12):
                path = tmp_path / "set" / part / name / f"{k}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(chance.integers(0, 256, (20, 30, 3), np.uint8)).save(path)
    root = tmp_path / "set"
    leak, twice = root / "test" / "cat" / "leak.png", root / "train" / "dog" / "twice.png"
    leak.write_bytes((root / "train" / "cat" / "0.png").read_bytes())
    twice.write_bytes((root / "train" / "cat" / "1.png").read_bytes())
    return root


@pytest.mark.parametrize("form", ["encoded", "decoded"])
def test_what_is_there_twice_is_found(photos, form):
    data = ImageFolder(root=str(photos), size=16, kept=form, validation_share=0).load()
    facts = facts_of(data)
    assert len(facts.leaks) == 1
    assert len(facts.contradictions) == 1
    if form == "encoded":
        assert facts.side == 20
        names = {str(photos / "test" / "cat" / "leak.png"), str(photos / "train/cat/0.png")}
        assert set(facts.leaks[0]) == names
    assert facts.broken is None
    assert facts.parts == (25, 0, 25)
    assert facts.counts.tolist() == [[12, 13], [0, 0], [13, 12]]
    assert facts.guessing == pytest.approx(100 * 13 / 25)


def test_more_bytes_than_allowed_are_not_read(photos):
    data = ImageFolder(root=str(photos), size=16, kept="encoded").load()
    facts = facts_of(data, most=100)
    assert facts.leaks is None
    assert facts.contradictions is None
