"""Test images are shown as the model's own configuration says."""

import numpy as np
import pytest
import timm
from PIL import Image
from timm.data import create_transform

import kdlab
from kdlab.data.image_folder import ImageFolder
from kdlab.data.shown import InputSpec
from kdlab.models.timm import TimmModel


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    chance = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("photos")
    for k in range(8):
        coarse = chance.integers(0, 256, (6, 8, 3), np.uint8)
        image = Image.fromarray(coarse).resize((160, 120), Image.Resampling.BICUBIC)
        (folder / "ab"[k % 2]).mkdir(exist_ok=True)
        image.save(folder / "ab"[k % 2] / f"{k}.png")
    return folder


def loaded(photos, **how):
    return ImageFolder(root=str(photos), size=48, **how).load()


@pytest.mark.parametrize("form", ["decoded", "encoded"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
def test_it_is_what_timm_shows_to_the_pixel(
    photos, kdlab_home, form, interpolation, crop_mode
):
    how = {"crop_pct": 0.8, "interpolation": interpolation, "crop_mode": crop_mode}
    data = loaded(photos, kept=form, fill=(9, 90, 200), **how)
    mean = tuple(value / 255 for value in (9, 90, 200))
    transform = create_transform((3, 48, 48), normalize=False, mean=mean, **how)
    for row, path in enumerate(sorted(photos.rglob("*.png"))):
        with Image.open(path) as image:
            expected = transform(image).numpy().astype(int)
        assert abs(data.inputs[np.array([row])][0].astype(int) - expected).max() <= 2


# As timm has them, and one with squares, a border, a larger test size.
MODELS = [
    "convnext_tiny.fb_in22k_ft_in1k_384",
    "coatnet_rmlp_2_rw_384.sw_in12k_ft_in1k",
    "eva02_base_patch14_448.mim_in22k_ft_in22k_in1k",
    "vit_base_patch16_siglip_224",
    "tf_efficientnet_lite0",
    "mobilenetv3_large_100",
    "swinv2_tiny_window8_256",
    "beit_base_patch16_224",
    "resnet50.a1_in1k",
]


@pytest.mark.parametrize("count", [3, pytest.param(50, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", MODELS)
def test_a_models_own_preprocessing_is_timms(name, count):
    shown = timm.data.resolve_data_config(
        pretrained_cfg=timm.get_pretrained_cfg(name).to_dict(), use_test_size=True
    )
    size = shown["input_size"][1]
    how = InputSpec(size=size, **TimmModel(variant=name).evaluation(size))
    assert how.crop_mode == shown["crop_mode"]
    assert how.crop_pct == shown["crop_pct"]
    transform = create_transform(**shown, normalize=False)
    chance = np.random.default_rng(count)
    for _ in range(count):
        width, height = (int(side) for side in chance.integers(150, 700, 2))
        coarse = chance.integers(0, 256, (height // 20, width // 20, 3), np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        expected = transform(image).numpy().astype(int)
        assert abs(how.pixels(image).astype(int) - expected).mean() <= 0.5


def test_a_long_strip_is_no_larger_than_others():
    """Its shorter side is enlarged: all of it would take 2 GB."""
    strip = np.random.default_rng(0).integers(0, 256, (1, 30_000, 3), np.uint8)
    for mode in ("center", "squash", "border"):
        how = InputSpec(size=64, crop_mode=mode)
        assert (
            how.pixels(strip).shape
            == how.pixels(strip.transpose(1, 0, 2)).shape
            == (3, 64, 64)
        )


def asked(photos, student, size=96, **options):
    block = {"type": "data/image_folder", "root": str(photos), "size": size, **options}
    return kdlab.load("smoke/none", {"data": block, "student": {"type": student}}).spec.data


def test_what_is_not_said_is_what_the_model_says(photos, kdlab_home):
    data = asked(photos, "timm/convnext_tiny.fb_in22k_ft_in1k_384")
    assert (data.crop_pct, data.interpolation, data.crop_mode) == (1.0, "bicubic", "squash")
    data = asked(photos, "timm/resnet18")
    assert (data.crop_pct, data.interpolation, data.crop_mode) == (
        0.95,
        "bicubic",
        "center",
    )
    data = asked(photos, "torchvision/resnet18", crop_mode="squash")
    assert (data.crop_pct, data.interpolation, data.crop_mode) == (
        0.875,
        "bilinear",
        "squash",
    )
    data = asked(photos, "models/patch_net")
    assert (data.crop_pct, data.interpolation, data.crop_mode) == (
        1.0,
        "bilinear",
        "center",
    )
    options = {"crop_pct": 0.5, "interpolation": "bilinear", "crop_mode": "border"}
    data = asked(photos, "timm/resnet18", **options)
    assert {name: getattr(data, name) for name in options} == options


def test_small_sets_are_shown_whole(photos, kdlab_home):
    data = asked(photos, "timm/resnet18", size=64)
    assert (data.crop_pct, data.interpolation, data.crop_mode) == (
        1.0,
        "bilinear",
        "center",
    )


def test_a_network_around_another_is_shown_what_that_is(photos, kdlab_home):
    block = {"type": "data/image_folder", "root": str(photos), "size": 96}
    student = {"type": "models/separable", "of": {"type": "timm/resnet18"}}
    spec = kdlab.load("smoke/none", {"data": block, "student": student}).spec
    assert spec.data.crop_pct == 0.95
    assert spec.student.normalisation() == spec.student.of.normalisation()


@pytest.mark.parametrize("name", ["deit_tiny", "tiny_vit", "vanilla_kd"])
def test_recipes_of_imagenet_ask_their_student(name):
    spec = kdlab.load(f"recipes/{name}").spec
    shown = spec.student.evaluation(spec.data.size)
    assert shown["crop_pct"] < 1
    assert {key: getattr(spec.data, key) for key in shown} == shown
