"""`kdlab data`: what a set holds, and what is wrong with it, before anybody trains."""

import numpy as np
import pytest
from PIL import Image

from kdlab.errors import BadInput
from kdlab.run.outputs.data_sheet import look_at


@pytest.fixture
def photos(tmp_path):
    chance = np.random.default_rng(0)
    for i in range(40):
        pixels = chance.integers(0, 256, (30 + i, 40, 3), np.uint8)
        path = (
            tmp_path
            / "photos"
            / ("train", "test")[i % 4 == 0]
            / f"<{'ab'[i % 2]}>"
            / f"{i}.png"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return tmp_path / "photos"


@pytest.mark.long
def test_a_folder_of_photos(photos, kdlab_home, kdlab_cli, tmp_path):
    page = tmp_path / "sheet.html"
    code, out, _ = kdlab_cli("data", str(photos), "size=70", "--html", str(page))
    assert code == 0
    assert "27 train, 3 validation, 10 test; 2 classes" in out
    assert "model input 70 × 70, RGB; each view cut from its file" in out
    assert "40 images decoded: none is broken" in out
    assert "no image of validation or test is in train" in out
    text = page.read_text()
    assert text.count("<img") == 24
    assert "&lt;a&gt;" in text  # class names are somebody's words
    assert "<a>" not in text


@pytest.mark.long
def test_what_is_broken_or_double_is_named(photos, kdlab_home, kdlab_cli):
    first, *_ = sorted(photos.glob("train/*/*.png"))
    copy = photos / "test" / first.parent.name / "copy.png"
    copy.write_bytes(first.read_bytes())
    sheet = look_at(photos, "size=70")
    assert [pair for pair in sheet.duplicates] == [(str(copy), str(first))]
    assert " ".join(f"{copy} = {first}".split()) in " ".join(repr(sheet).split())
    cut = photos / "test" / "<a>" / "cut.png"
    cut.write_bytes(first.read_bytes()[:300])  # its size is said before that
    code, out, _ = kdlab_cli("data", str(photos), "size=70")
    assert code == 1
    assert "1 of 42 images cannot be decoded" in out
    assert str(cut) in out
    assert "views/s" not in out  # it would end at the broken one: nothing was measured


@pytest.mark.long
def test_small_sets_are_looked_at_as_they_are_decoded(kdlab_home, kdlab_cli):
    code, out, _ = kdlab_cli("data", "data/digits")
    assert code == 0
    assert "model input 16 × 16, grey; decoded once into memory" in out
    assert out.count("\n") > 12  # ten classes


@pytest.mark.long
def test_a_config_has_data_too(kdlab_home):
    assert look_at("smoke/none", "augment.flip=true").data.augment.flip


@pytest.mark.parametrize("name", ["no_such_config", "data/no_such", "smoke/none"])
def test_what_is_no_set_is_refused(name, kdlab_home):
    with pytest.raises(BadInput):
        look_at(name, "size=-3")


@pytest.mark.long
def test_an_image_of_two_classes_is_named_and_a_table_is_taken(photos, kdlab_home):
    first, *_ = sorted(photos.glob("train/<a>/*.png"))
    copy = photos / "train" / "<b>" / "copy.png"
    copy.write_bytes(first.read_bytes())
    rows = [
        f"{p.relative_to(photos)},{p.parent.name}" for p in sorted(photos.rglob("*.png"))
    ]
    (photos / "all.csv").write_text("\n".join(["path,label", *rows]))
    for name, line in (
        (photos, "split taken from your folders: train/, test/; drawn with seed 0: "),
        (photos / "all.csv", "no split found: train "),
    ):
        sheet = look_at(name, "size=70")
        assert [set(pair) for pair in sheet.contradictions] == [{str(copy), str(first)}]
        assert "1 images are in two classes" in repr(sheet)
        assert line in repr(sheet)


def test_the_home_of_nobody_is_no_data_set():
    with pytest.raises(BadInput, match="~nobodyxyz/x"):
        look_at("~nobodyxyz/x")
