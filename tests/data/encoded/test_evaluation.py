"""What is shown in a test is what the model's own configuration says."""

import io

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import v2

import kdlab
from kdlab.data.image_folder import ImageFolder
from kdlab.models.timm import TimmModel
from kdlab.models.torchvision import TorchvisionModel


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


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_it_is_near_to_resize_and_centre_crop(photos, kdlab_home, interpolation):
    """Resize to side / crop_pct and a crop of `side`: here in one step, from the original."""
    how = {"crop_pct": 0.8, "interpolation": interpolation}
    data = ImageFolder(root=str(photos), size=48, kept="encoded", **how).load()
    transform = v2.Compose(
        [
            v2.Resize(60, v2.InterpolationMode(interpolation), antialias=True),
            v2.CenterCrop(48),
            v2.PILToTensor(),
        ]
    )
    for row in range(8):
        with Image.open(io.BytesIO(data.inputs.store.read(row))) as image:
            expected = transform(image).numpy().astype(int)
        found = data.inputs[np.array([row])][0].astype(int)
        assert abs(found - expected).mean() < 1.5


def test_null_is_what_the_model_says(photos, kdlab_home):
    assert TimmModel(variant="resnet18").evaluation() == (0.95, "bicubic")
    assert TorchvisionModel(variant="resnet18").evaluation() == (0.875, "bilinear")
    block = f"{{type: data/image_folder, root: '{photos}', size: 48, crop_pct: null}}"
    for student, expected in (("timm/resnet18", 0.95), ("models/patch_net", 1.0)):
        spec = kdlab.load("smoke/none", f"data={block}", f"student.type={student}").spec
        assert spec.data.crop_pct == expected
        assert spec.data.interpolation == "bilinear"  # as it was told
