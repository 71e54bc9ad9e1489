"""Confusions, confidence and images, as pages have them."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from kdlab.report import chart
from kdlab.report.confusion import Confusion
from kdlab.report.histogram import confidence_histogram
from kdlab.report.pictures import Pictures, picture

LABELS = np.array([0, 0, 0, 0, 1, 1, 2])
SAID = np.array([0, 1, 1, 2, 1, 0, 2])


@pytest.fixture
def confusion():
    return Confusion.from_predictions(LABELS, SAID, ["cat", "dog", "<b>"])


def test_rows_are_classes_and_columns_what_they_are_taken_for(confusion):
    assert confusion.counts.tolist() == [[1, 2, 1], [1, 1, 0], [0, 0, 1]]


def test_the_commonest_confusions_come_first_and_only_those_that_happened(confusion):
    assert confusion.confused(9) == [(0, 1), (0, 2), (1, 0)]
    assert confusion.confused(1) == [(0, 1)]


def test_a_large_matrix_shows_the_classes_with_most_errors(confusion):
    assert confusion.shown(3).tolist() == [0, 1, 2]
    assert confusion.shown(2).tolist() == [0, 1]
    page = confusion.html("m", lambda cell: "", most=2)
    assert "the 2 of 3 classes with most errors" in page
    assert page.count("<td") == 4 + 1  # and the corner
    assert "classes with most errors" not in confusion.html("m", lambda cell: "")


def test_a_cell_opens_its_images_and_words_are_escaped(confusion):
    asked = []

    def images(cell):
        asked.append(cell)
        return "<img/>" if cell == (0, 1) else ""

    page = confusion.html("m", images)
    assert asked == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 2)]  # those that have some
    assert page.count("popovertarget") == page.count("<div popover") == 1
    assert 'popovertarget="m-0-1"' in page
    assert '<div popover id="m-0-1"' in page
    assert "2 of cat are taken for dog" in page
    assert "1 of &lt;b&gt; are right" in page
    assert "<b>are" not in page


def test_a_cell_is_the_stronger_the_larger_its_share(confusion):
    page = confusion.html("m", lambda cell: "")
    assert "rgba(209,96,61,0.40)" in page  # half of the cats are taken for dogs
    assert "rgba(59,130,196,0.60)" in page  # all of the third class are right


def test_bars_of_confidence_count_right_and_wrong():
    sure = np.array([0.99, 0.97, 0.52, 0.51])
    right = np.array([True, False, True, True])
    panel = confidence_histogram("student", sure, right)
    assert (panel.title, panel.unit, panel.bars) == ("student", "images", True)
    assert [len(points) for points in panel.curves.values()] == [20, 20]
    assert dict(panel.curves["right"])[50.0] == 2
    assert dict(panel.curves["right"])[95.0] == dict(panel.curves["wrong"])[95.0] == 1
    (drawn,) = chart.drawings([panel])
    assert "<title>2 right from 50 on</title>" in drawn


def test_no_images_at_all_have_an_empty_chart():
    empty = confidence_histogram("student", np.zeros(0), np.zeros(0, bool))
    (drawn,) = chart.drawings([empty])
    bars = re.findall(r'height="([\d.]+)" fill', drawn)
    assert set(bars) == {"0.0"}


def shown(html):
    source = re.search(r'src="data:image/(\w+);base64,([^"]+)"', html)
    return source[1], Image.open(io.BytesIO(base64.b64decode(source[2])))


def test_a_small_image_travels_as_it_is():
    image = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    html = picture(image, 96, 'a "cat"')
    kind, got = shown(html)
    assert kind == "png"
    assert np.array_equal(np.moveaxis(np.asarray(got), -1, 0), image)
    assert "pixelated" in html
    assert 'alt="a &quot;cat&quot;"' in html


def test_a_large_one_travels_as_large_as_it_is_shown():
    html = picture(np.zeros((3, 400, 800), np.uint8), 96, "")
    kind, got = shown(html)
    assert (kind, got.size) == ("jpeg", (192, 96))
    assert "pixelated" not in html


def test_a_grey_image_has_one_channel():
    _, got = shown(picture(np.full((1, 8, 8), 7, np.uint8), 96, ""))
    assert (got.mode, got.getpixel((0, 0))) == ("L", 7)


def test_pictures_have_their_lines_below_them_and_in_a_terminal():
    pictures = Pictures(np.zeros((2, 3, 4, 4), np.uint8), [["cat", "99 %"], ["<dog>"]])
    assert len(pictures) == 2
    assert repr(pictures) == "cat · 99 %\n<dog>"
    page = pictures._repr_html_()
    assert page.count("<img") == 2
    assert "cat<br>99 %" in page
    assert "&lt;dog&gt;" in page
