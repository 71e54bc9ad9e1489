"""However a photo comes, it is shown the same: kept decoded or encoded, from a path, in memory."""

import io
import zipfile

import numpy as np
import onnx
import onnxruntime
import pytest
import timm
import torch
from odd_photos import expected, odd_photos, picture, saved
from PIL import Image

from kdlab.data.augment import Augment
from kdlab.data.encoded.decode import decoded, head
from kdlab.data.image_folder import ImageFolder
from kdlab.data.samples import planned
from kdlab.errors import DataError
from kdlab.models.model import export, read_card
from kdlab.models.patch_net import PatchNet
from kdlab.models.timm import TimmModel
from kdlab.run.outputs.export_formats import ship
from kdlab.run.outputs.onnx_file import front
from kdlab.run.outputs.prediction import StudentAtWork
from kdlab.run.outputs.timm_folder import write_timm_folder
from kdlab.train.evaluate import in_batches, probabilities

SIZES = [(60, 40, 24), pytest.param(1203, 801, 224, marks=pytest.mark.nightly)]


def load_set(raws, path, how, **options):
    """Write six class folders, in the order of names, and load them as one set."""
    for number, name in enumerate(sorted(raws)):
        folder = path / "abcdef"[number * 6 // len(raws)]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raws[name])
    options = {"test_share": 0.0} | options
    return ImageFolder(root=str(path), kept=how, **options).load()


def student_of(data, folder):
    torch.manual_seed(0)
    spec = PatchNet(patch=4, width=8)
    model = spec.build(len(data.classes), 3).eval()
    export(model, spec, folder / "student.safetensors", data)
    return StudentAtWork(folder / "student.safetensors")


# How a photo may come to a student: name -> (student, folder, raws) to what it is shown of each.
# A way gives (N, 3, size, size) in the order of names.
WAYS = {
    "path": lambda student, folder, raws: student(folder).pixels,
    "bytes": lambda student, folder, raws: (
        student([raws[name] for name in sorted(raws)]).pixels
    ),
    "memory": lambda student, folder, raws: (
        student([Image.open(io.BytesIO(raws[name])) for name in sorted(raws)]).pixels
    ),
}


@pytest.mark.parametrize(("width", "height", "size"), SIZES)
@pytest.mark.parametrize(
    "crop", [{}, {"crop_pct": 0.8, "interpolation": "bicubic"}], ids=str
)
def test_sixty_odd_photos_are_shown_the_same_however_they_come(
    tmp_path, kdlab_home, width, height, size, crop
):
    raws = odd_photos(width, height)
    assert len(raws) == 60
    decoded, encoded = (
        load_set(raws, tmp_path / "set", how, size=size, **crop)
        for how in ("decoded", "encoded")
    )
    rows = np.arange(len(raws))
    by_way = {"decoded": decoded.inputs[rows], "encoded": encoded.inputs[rows]}
    student = student_of(encoded, tmp_path)
    by_way |= {name: way(student, tmp_path / "set", raws) for name, way in WAYS.items()}
    classes = {
        name: probabilities(student.model, in_batches(shown)).argmax(1)
        for name, shown in by_way.items()
    }
    for name, shown in by_way.items():
        assert np.array_equal(shown, by_way["decoded"]), name
        assert np.array_equal(classes[name], classes["decoded"]), name
    for name, shown in zip(sorted(raws), by_way["decoded"], strict=True):
        pixels, apart = expected(name, width, height)
        upright = student.input.pixels(pixels.astype(np.uint8)).astype(int)
        assert abs(upright - shown).max() <= apart, name
        assert abs(upright - shown).mean() <= apart / 8 + 0.5, name


def test_grey_is_one_rule_too(tmp_path, kdlab_home):
    raws = odd_photos()
    decoded, encoded = (
        load_set(raws, tmp_path / "set", how, size=24, channels=1)
        for how in ("decoded", "encoded")
    )
    assert np.array_equal(decoded.inputs[:], encoded.inputs[np.arange(len(raws))])


def squares(count, side):
    """PNGs of noise, each just as large as it is shown."""
    chance = np.random.default_rng(0)
    noise = chance.integers(0, 256, (count, side, side, 3), np.uint8)
    raws = {}
    for k, pixels in enumerate(noise):
        raw = io.BytesIO()
        Image.fromarray(pixels).save(raw, "PNG")
        raws[f"{k:02}.png"] = raw.getvalue()
    return raws


EVERYTHING = Augment(
    flip=True,
    crop_padding=2,
    resized_crop=0.08,
    policy="rand_augment",
    hue=0.1,
    erasing=0.5,
)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3])
def test_decoded_and_encoded_sets_draw_the_same_views(
    tmp_path, kdlab_home, interpolation, channels
):
    how = {"size": 32, "channels": channels, "interpolation": interpolation}
    how |= {"augment": EVERYTHING}
    decoded, encoded = (
        load_set(squares(16, 32), tmp_path / "set", kind, **how)
        for kind in ("decoded", "encoded")
    )
    ids = np.arange(16)
    for epoch in range(5):
        views = decoded.views(ids, epoch)
        assert np.array_equal(views, encoded.views(ids, epoch))
        assert not np.array_equal(views, decoded.views(ids, epoch + 1))


def test_the_same_parts_are_drawn_at_64_and_at_65_pixels(tmp_path, kdlab_home):
    """The set is kept decoded at 64 pixels and encoded at 65."""
    small = load_set(squares(16, 64), tmp_path / "64", "auto", size=64, augment=EVERYTHING)
    large = load_set(squares(16, 65), tmp_path / "65", "auto", size=65, augment=EVERYTHING)
    assert type(small).__name__ == "DecodedData"
    assert type(large).__name__ == "EncodedData"
    ids = np.arange(16)
    boxes = [data.augment.boxes(ids, 3) for data in (small, large)]
    for i in range(16):
        first, second = (np.array(boxes[k](i, 64 + k, 64 + k)) / (64 + k) for k in (0, 1))
        assert abs(first - second).max() < 0.02


def test_crops_have_the_mean_area_of_the_published_rule():
    """Torchvision's, from 8 % on: to clip a try instead of drawing again would add 0.04."""
    from torchvision.transforms import RandomResizedCrop

    ids = np.arange(1500)
    boxes = Augment(resized_crop=0.08).boxes(ids, 0)
    ours = [boxes(i, 100, 150) for i in ids]
    torch.manual_seed(0)
    image = torch.zeros(3, 100, 150)
    theirs = [RandomResizedCrop.get_params(image, (0.08, 1), (3 / 4, 4 / 3)) for _ in ours]
    areas = [
        np.mean([box[-1] * box[-2] for box in some]) / 15000 for some in (ours, theirs)
    ]
    assert abs(areas[0] - areas[1]) < 0.025
    assert boxes(0, 1, 400)[2:] == (
        1,
        1,
    )  # no try fits: the middle, as wide as a ratio allows


def test_whoever_keeps_other_pixels_has_another_key(tmp_path, kdlab_home):
    """A teacher may hold the set encoded and a student decoded: they compare keys, and each
    setting that changes pixels changes the key."""
    same = squares(8, 32)
    keys = [
        planned(load_set(same, tmp_path / "set", how, size=32, **more), {}, batch=4, seed=0,
                epochs=1).view_key()
        for how, more in (
            ("decoded", {}),
            ("encoded", {}),
            ("encoded", {"crop_pct": 0.9}),
            ("encoded", {"interpolation": "bicubic"}),
            ("encoded", {"crop_mode": "squash"}),
            ("encoded", {"crop_mode": "border", "fill": (1, 2, 3)}),
            ("encoded", {"channels": 1}),
            ("encoded", {"augment": Augment(resized_crop=0.5)}),
        )
    ]  # fmt: skip
    assert len({tuple(sorted(key.items())) for key in keys}) == len(keys)


def test_specs_with_a_resized_crop_alone_have_other_keys_than_before():
    """Version 0.2 drew other crops of decoded sets; all else is as it was."""
    assert Augment(flip=True, resized_crop=0.3).fingerprint() != "4ca259ff55d5d203"
    assert Augment(flip=True, crop_padding=4).fingerprint() == "053792d649d22ce1"


@pytest.fixture(scope="module")
def student(tmp_path_factory, kdlab_home):
    folder = tmp_path_factory.mktemp("student")
    return student_of(load_set(squares(4, 20), folder / "set", "encoded", size=20), folder)


PIXELS = np.random.default_rng(1).integers(0, 256, (30, 50, 3), np.uint8)
ARRAYS = {
    "channels first": PIXELS.transpose(2, 0, 1),
    "a tensor": torch.from_numpy(PIXELS.transpose(2, 0, 1).copy()),
    "16 bits": PIXELS.astype(np.uint16) * 257,
    "from 0 to 1": (PIXELS / 255).astype(np.float32),
    "with alpha": np.concatenate([PIXELS, PIXELS[..., :1]], 2),
    "of Pillow": Image.fromarray(PIXELS),
    "read-only": np.broadcast_to(PIXELS, PIXELS.shape),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.filterwarnings("error")
def test_an_array_is_the_image_that_it_can_only_be(student, name):
    answer = student(PIXELS)
    assert np.array_equal(student(ARRAYS[name]).pixels, answer.pixels)
    assert student([ARRAYS[name]])[0].classes == answer[0].classes


def test_a_grey_array_is_a_grey_image(student):
    grey = PIXELS[..., 0]
    shown = student(grey).pixels
    for array in (grey[..., None], grey[None], np.stack([grey, grey], -1)):
        assert np.array_equal(student(array).pixels, shown)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (
            PIXELS.astype(np.int64),
            "is an array of int64; an image has whole numbers from 0 to 255",
        ),
        (
            PIXELS.astype(np.float32),
            "has floating-point pixels from 0 to 255; from 0 to 1 are taken",
        ),
        (np.full((4, 4), np.nan), "has floating-point pixels from nan to nan"),
        (PIXELS > 3, "is an array of bool"),
        (np.zeros((9, 9, 9), np.uint8), r"is an array of shape \(9, 9, 9\)"),
        (np.zeros((0, 9, 3), np.uint8), r"is an array of shape \(0, 9, 3\)"),
        (np.zeros(9, np.uint8), r"is an array of shape \(9,\)"),
    ],
    ids=["int64", "0 to 255", "nan", "bool", "nine channels", "empty", "flat"],
)
def test_an_array_that_is_no_image_is_refused_in_plain_words(student, array, words):
    with pytest.raises(DataError, match=f"image {words}"):
        student(array)


def test_a_picture_in_memory_is_left_as_it_was(student):
    image = Image.open(io.BytesIO(odd_photos()["exif 6.jpg"]))
    student(image)
    assert image.getexif()[274] == 6


def test_a_picture_without_pixels_is_none(student):
    with pytest.raises(DataError, match="image cannot be decoded"):
        student(Image.new("RGB", (0, 5)))


def test_a_picture_whose_file_is_cut_off_is_named(student):
    raw = saved(picture(300, 200), "JPEG", quality=95)
    with pytest.raises(DataError, match="image cannot be decoded"):
        student(Image.open(io.BytesIO(raw[:1500])))


def test_a_zip_says_the_orientation_of_a_photo_as_a_folder_does(tmp_path, kdlab_home):
    """Only the first bytes of its members are read at first: EXIF may stand behind them."""
    raws = odd_photos()
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for name, raw in sorted(raws.items()):
            archive.writestr(f"a/{name}", raw)
    rows = np.arange(len(raws))
    inside = ImageFolder(
        root=str(tmp_path / "set.zip"), kept="encoded", size=24, test_share=0.0
    )
    folder = load_set(raws, tmp_path / "set", "encoded", size=24)
    assert np.array_equal(inside.load().inputs[rows], folder.inputs[rows])


class ExportResult:
    """A student in the two forms that other tools read: pixels and scores of each."""

    def __init__(self, data, folder):
        torch.manual_seed(0)
        spec = TimmModel(variant="test_resnet.r160_in1k", pretrained=False)
        model = spec.build(len(data.classes), 3).eval()
        student = folder / "student.safetensors"
        export(model, spec, student, data)
        facts = {name: "x" for name in ("kdlab_version", "run", "member", "dataset")}
        facts |= {"licence": "mit", "teacher": None, "test_top1": 1.0, "test_images": 1}
        write_timm_folder(student, folder / "for_timm", facts)
        path = folder / "student.onnx"
        ship(model, data.inputs[np.arange(4)], "onnx", path, read_card(student) | facts)
        self.student = StudentAtWork(student)
        self.session = onnxruntime.InferenceSession(path)
        graph = front(read_card(student)["input"])
        self.front = onnxruntime.InferenceSession(
            onnx.helper.make_model(
                graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10
            ).SerializeToString()
        )
        local = f"local-dir:{folder / 'for_timm'}"
        self.model = timm.create_model(local, pretrained=True).eval()
        config = timm.data.resolve_data_config({}, model=self.model)
        self.transform = timm.data.create_transform(**config)
        self.mean, self.std = (
            torch.tensor(config[key])[:, None, None] for key in ("mean", "std")
        )

    def in_onnx(self, upright):
        feed = {"pixels": upright.transpose(2, 0, 1)[None]}
        (shown,), (scores,) = self.front.run(None, feed), self.session.run(None, feed)
        return shown[0], scores[0]

    def in_timm(self, upright):
        view = self.transform(Image.fromarray(upright))
        with torch.inference_mode():
            scores = self.model(view[None])[0]
        return ((view * self.std + self.mean) * 255).round().numpy(), scores.numpy()


@pytest.mark.parametrize(("width", "height", "size"), [(60, 40, 32)])
@pytest.mark.parametrize(
    "crop", [{}, {"crop_pct": 0.8, "interpolation": "bicubic"}], ids=str
)
def test_other_tools_show_the_sixty_photos_as_kdlab_does(
    tmp_path, kdlab_home, width, height, size, crop
):
    raws = odd_photos(width, height)
    data = load_set(raws, tmp_path / "set", "encoded", size=size, **crop)
    shipped = ExportResult(data, tmp_path)
    rows = data.inputs[np.arange(len(raws))]
    tops = probabilities(shipped.student.model, in_batches(rows)).argmax(1)
    for name, shown, top in zip(sorted(raws), rows, tops, strict=True):
        raw = raws[name]
        upright = decoded(raw, head(raw), np.copy)
        for way in (shipped.in_onnx, shipped.in_timm):
            pixels, scores = way(upright)
            assert abs(pixels.astype(int) - shown).max() <= 1, (name, way.__name__)
            assert scores.argmax() == top, (name, way.__name__)
