"""An exported ONNX file prepares pixels as kdlab does and answers as its run does."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

from kdlab.data.encoded.decode import resized
from kdlab.data.shown import InputSpec
from kdlab.errors import BadInput, WeightsError
from kdlab.models.model import export
from kdlab.models.patch_net import PatchNet
from kdlab.run.outputs.export_formats import ship
from kdlab.run.outputs.onnx_file import front
from kdlab.run.outputs.prediction import StudentAtWork, answers

SIZES = [(90, 61), (33, 32), (32, 500), (17, 29), (1200, 40), (32, 32), (31, 700)]


def session(graph):
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10
    )
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString())


def photo(height, width, channels=3):
    """Soft shapes with some noise, as photos have."""
    random = np.random.default_rng(height * width)
    rough = random.integers(0, 256, (7, 5, 3), np.uint8)
    large = np.asarray(Image.fromarray(rough).resize((width, height), Image.BICUBIC))
    noise = random.integers(-20, 20, large.shape)
    return np.clip(large + noise, 0, 255).astype(np.uint8)[..., :channels]


def shown(image, size, crop_pct, interpolation, mode):
    """timm's rule with torch's resizing: resize the image, then cut out its middle."""
    height, width, _ = image.shape
    side, short = int(size / crop_pct), min(height, width)
    if mode == "center" and max(height, width) > 16 * short:
        top, left = (round((have - min(have, 16 * short)) / 2) for have in (height, width))
        image = image[top : top + 16 * short, left : left + 16 * short]
        height, width, _ = image.shape
    to = (int(side * height / short), int(side * width / short))
    large = resized(
        np.ascontiguousarray(image),
        to if mode == "center" else (side, side),
        interpolation,
    )
    top, left = (round((have - size) / 2) for have in large.shape[:2])
    return large[top : top + size, left : left + size].transpose(2, 0, 1)


@pytest.mark.parametrize("mode", ["center", "squash"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("crop_pct", [1.0, 0.875])
def test_pixels_are_within_one_of_those_that_kdlab_shows(mode, interpolation, crop_pct):
    how = {"size": 32, "channels": 3, "crop_pct": crop_pct}
    run = session(front(how | {"interpolation": interpolation, "crop_mode": mode}))
    for height, width in SIZES:
        image = photo(height, width)
        (pixels,) = run.run(None, {"pixels": image.transpose(2, 0, 1)[None]})
        expected = shown(image, 32, crop_pct, interpolation, mode)
        apart = np.abs(pixels[0].astype(int) - expected)
        # Where an image is enlarged, rounding twice may change a pixel in thousands by two.
        assert apart.max() <= (1 if min(height, width) >= 40 else 2), (height, width)
        assert (apart > 1).mean() < 1e-3


def test_one_that_is_shown_already_is_taken_as_it_is():
    how = {"size": 32, "channels": 3, "crop_pct": 0.875, "interpolation": "bicubic"}
    run = session(front(how | {"crop_mode": "center"}))
    image = photo(32, 32).transpose(2, 0, 1)[None]
    (pixels,) = run.run(None, {"pixels": image, "is_shown": np.array(True)})
    assert np.array_equal(pixels, image)


def test_what_no_operator_shows_so_is_left_out():
    assert front({"size": 32, "crop_mode": "border"}) is None
    assert front({"size": 32, "resize": "pillow"}) is None  # of an earlier version


class Photos:
    """The part of a data set that an export reads: its classes and input size."""

    classes = ("cat", "dog", "<b>")
    shown = InputSpec(size=16)


@pytest.fixture
def exported(tmp_path):
    """A student of three classes: its ONNX file, its file in the run, and its model."""
    torch.manual_seed(0)
    spec = PatchNet(patch=4, depth=1, width=8)
    model = spec.build(3, 3).eval()
    student = tmp_path / "student.safetensors"
    export(model, spec, student, Photos())
    card = json.loads(student.with_suffix(".json").read_text())
    images = np.random.default_rng(0).integers(0, 256, (9, 3, 16, 16), np.uint8)
    path = tmp_path / "own.onnx"
    shipped = ship(model, images, "onnx", path, card | {"run": "r1", "test_top1": 51.5})
    assert shipped.same_top1 == 1.0
    return path, student, model


@pytest.mark.long
def test_it_is_asked_as_a_run_is_and_says_the_same(exported, tmp_path):
    path, student, _ = exported
    files = []
    for number, (height, width) in enumerate(SIZES):
        for kind in ("JPEG", "PNG"):
            files.append(tmp_path / f"{number}.{kind.lower()}")
            Image.fromarray(photo(height, width)).save(files[-1], kind)
    turned = Image.fromarray(photo(40, 20))
    turned.getexif()[274] = 6
    turned.save(tmp_path / "turned.jpg", exif=turned.getexif())
    Image.fromarray(photo(20, 30)).convert("P").save(tmp_path / "few.gif")
    files += [tmp_path / "turned.jpg", tmp_path / "few.gif"]
    by_onnx, by_run = answers(str(path), files, 2), answers(str(student), files, 2)
    assert (by_onnx.pixels == by_run.pixels).all()
    for of_onnx, of_run in zip(by_onnx, by_run, strict=True):
        assert of_onnx.classes == of_run.classes
        assert of_onnx.probabilities == pytest.approx(of_run.probabilities, abs=1e-5)
    folder = answers(str(tmp_path), files, 2)  # student.safetensors lies in it
    assert folder.to_json() == by_run.to_json()


@pytest.mark.long
def test_its_card_is_inside(exported):
    path, student, _ = exported
    props = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    card = json.loads(student.with_suffix(".json").read_text())
    assert {k: json.loads(v) for k, v in props.items()} == card | {
        "run": "r1", "test_top1": 51.5,
    }  # fmt: skip
    assert json.loads(props["classes"]) == ["cat", "dog", "<b>"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("props", "why"),
    [
        ({}, "no ONNX file with a card inside"),
        ({"classes": "["}, "no ONNX file with a card inside"),
        ({"num_classes": "4", "classes": "[]"}, "does not answer as its card says"),
        ({"num_classes": "1000000000"}, "num_classes is 1000000000"),
    ],
)
def test_cards_that_are_none_are_a_sentence(exported, tmp_path, props, why):
    path, student, _ = exported
    model = onnx.load(path)
    card = json.loads(student.with_suffix(".json").read_text())
    card = {k: json.dumps(v) for k, v in card.items()} | props if props else {}
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, card)
    onnx.save(model, path)
    with pytest.raises((WeightsError, BadInput), match=why):
        StudentAtWork(path)(photo(20, 20))


def test_what_is_no_file_of_onnx_is_a_sentence(tmp_path):
    path = tmp_path / "own.onnx"
    with pytest.raises(WeightsError, match="no ONNX file with a card inside"):
        StudentAtWork(path)
    for raw in (b"", b"\x08\x0a" + bytes(999), b"<html>"):
        path.write_bytes(raw)
        with pytest.raises(WeightsError, match="no ONNX file with a card inside"):
            StudentAtWork(path)
