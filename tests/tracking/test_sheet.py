"""The picture of watched images: each with its class and the models' answers."""

import numpy as np
import pytest
from PIL import Image
from tests_support import event

from kdlab.tracking.sheet import sheet

SIDE = 48


@pytest.fixture
def chosen(tmp_path):
    """Five images of one colour each, and their classes."""
    colours = ["#ff0000", "#00ff00", "#0000ff", "#ffff00", "#ff00ff"]
    strip = Image.new("RGB", (len(colours) * SIDE, SIDE))
    for place, colour in enumerate(colours):
        strip.paste(colour, (place * SIDE, 0, (place + 1) * SIDE, SIDE))
    strip.save(tmp_path / "watched.png")
    labels = ["cat", "dog", "owl", "a name that is much too long for its cell", "eel"]
    path = str(tmp_path / "watched.png")
    return event("images_chosen", path=path, side=SIDE, labels=labels)


def answer(names, share=50.0):
    shares = [share] * len(names)
    return event("images_answered", step=1, epoch=1, said=names, shares=shares)


def pixels_of(picture, colour):
    """Return (row, column) of all pixels of exactly this colour."""
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return np.argwhere((np.asarray(picture) == (red, green, blue)).all(-1))


def test_four_images_stand_in_a_row_and_the_fifth_below(chosen):
    picture = sheet(chosen, answer(chosen.labels), None)
    red, green, magenta = (
        pixels_of(picture, c).min(0) for c in ("#ff0000", "#00ff00", "#ff00ff")
    )
    assert red[0] == green[0]
    assert green[1] - red[1] == 132  # a cell
    assert magenta[1] == red[1]
    assert magenta[0] > red[0] + SIDE
    assert len(pixels_of(picture, "#ff0000")) == SIDE * SIDE
    assert picture.width == 4 * 132 + 10


def test_right_is_green_and_wrong_is_red(chosen):
    right = sheet(chosen, answer(chosen.labels), None)
    wrong = sheet(chosen, answer(["eel", "cat", "dog", "owl", "cat"]), None)
    assert len(pixels_of(right, "#1f7a45"))
    assert not len(pixels_of(right, "#b3261e"))
    assert not len(pixels_of(wrong, "#1f7a45"))
    assert len(pixels_of(wrong, "#b3261e"))


def test_the_teacher_has_a_line_of_its_own_below_the_students(chosen):
    plain = sheet(chosen, answer(chosen.labels), None)
    both = sheet(chosen, answer(chosen.labels), answer(["eel"] * 4 + ["cat"]))
    assert plain.size == both.size
    assert len(pixels_of(both, "#b3261e"))  # wrong, unlike the student
    assert pixels_of(both, "#b3261e")[:, 0].min() > pixels_of(plain, "#1f7a45")[:, 0].min()


def test_a_name_that_is_too_long_stays_in_its_cell(chosen):
    picture = sheet(chosen, answer(chosen.labels), None)
    written = pixels_of(picture, "#444444")
    assert len(written)
    fourth = 10 + 3 * 132
    assert written[:, 1].max() < fourth + 132


def test_few_images_make_a_small_picture(tmp_path):
    path = tmp_path / "one.png"
    Image.new("L", (SIDE, SIDE)).save(path)
    single = event("images_chosen", path=str(path), side=SIDE, labels=["cat"])
    assert sheet(single, answer(["cat"]), None).width == 132 + 10


def test_a_picture_that_somebody_removed_is_said(chosen):
    gone = event("images_chosen", path=chosen.path + "x", side=SIDE, labels=["cat"])
    with pytest.raises(FileNotFoundError):
        sheet(gone, answer(["cat"]), None)
