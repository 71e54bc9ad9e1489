"""Foundation models as teachers: real networks of timm at a tiny size, weights from files."""

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from kdlab.errors import ModelError, WeightsError
from kdlab.models.bare import bare, bare_file
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.model import Normalised
from kdlab.models.published import published
from kdlab.models.shrunk import ShrunkModel
from kdlab.models.timm import TimmModel
from kdlab.models.with_features import Taps, as_map, shapes_of, tap_of

TINY = {"depth": 1, "embed_dim": 48, "num_heads": 3}
FAMILIES = {  # the side of an image, and tokens that are no patches
    "vit_small_patch16_dinov3": (32, 5),
    "vit_small_patch14_reg4_dinov2": (28, 5),
    "vit_base_patch16_siglip_224": (32, 0),
    "vit_base_patch16_clip_224": (32, 1),
}


def published_file(folder, name, side, **more):
    """Write weights as the network's authors would publish them."""
    torch.manual_seed(2)
    net = timm.create_model(name, img_size=side, **TINY, **more)
    path = folder / "model.safetensors"
    save_file({k: t.contiguous() for k, t in net.state_dict().items()}, path)
    return net, path


@pytest.mark.parametrize(("name", "about"), FAMILIES.items())
def test_each_family_teaches_by_a_vector_and_by_a_map(name, about, tmp_path, kdlab_home):
    side, prefix = about
    net, path = published_file(tmp_path, name, side)
    options = {"img_size": side, **TINY}
    spec = TimmModel(variant=name, pretrained=str(tmp_path), options=options)
    assert spec.origin() == str(path)
    model = ShrunkModel.from_model(spec, side).build(0, 3).eval()
    views = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8)
    taps = [tap_of(model, tap, views) for tap in ("penultimate", "patches", "blocks.0:map")]
    vector, *maps = shapes_of(model, taps, views)
    assert vector == (48,)
    assert maps == [(48, 2, 2), (48, 2, 2)]
    # The numbers are those of timm's own network with these weights.
    taken, net = Taps(model.net, taps[:2]), net.eval()
    model(views)
    pooled, patches = taken.take()
    small = torch.nn.functional.interpolate(
        (views.float() - model.mean) / model.std,
        (side, side),
        mode="bilinear",
        antialias=True,
    )
    with torch.inference_mode():
        tokens = net.forward_features(small)
        assert torch.allclose(pooled, net.forward_head(tokens, pre_logits=True), atol=1e-5)
    expected = tokens[:, prefix:].transpose(1, 2).reshape(2, 48, 2, 2)
    assert torch.allclose(patches, expected, atol=1e-5)


def test_its_file_is_made_once_without_its_last_layer(tmp_path, kdlab_home):
    name = "test_resnet"
    net = timm.create_model(name)
    path = tmp_path / "w.safetensors"
    save_file(net.state_dict(), path)
    for spec in (
        TimmModel(variant=name, weights=str(path)),
        TimmModel(variant=name, pretrained=str(path)),
        ShrunkModel.from_model(TimmModel(variant=name, weights=str(path)), 48),
    ):
        file = bare_file(spec, 3)
        state = {k.removeprefix("inner."): t for k, t in load_file(file).items()}
        assert {k for k in net.state_dict() if k not in state} == {"fc.weight", "fc.bias"}
        assert all(torch.equal(t, net.state_dict()[k]) for k, t in state.items())
        for damage in (None, b"", file.read_bytes()[:-1]):
            if damage is not None:
                file.write_bytes(damage)
            assert bare_file(spec, 3) == file
            assert len(load_file(file)) == len(state)  # a damaged one is made again
    before = bare_file(TimmModel(variant=name, weights=str(path)), 3)
    save_file({k: t * 2 for k, t in net.state_dict().items()}, path)
    assert bare_file(TimmModel(variant=name, weights=str(path)), 3) != before


def test_a_network_with_a_distillation_token_goes_without_both_last_layers(tmp_path):
    name, options = "deit_tiny_distilled_patch16_224", {"img_size": 32, "depth": 1}
    net, path = timm.create_model(name, **options), tmp_path / "w.safetensors"
    save_file(net.state_dict(), path)
    views = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    for origin in ({"pretrained": str(path)}, {"weights": str(path)}):
        model = bare(TimmModel(variant=name, options=options, **origin), 3).eval()
        inputs = (views - model.mean) / model.std
        with torch.inference_mode():
            pooled = net.eval().forward_head(net.forward_features(inputs), pre_logits=True)
            assert torch.allclose(model(views), pooled, atol=1e-5)
    refit = TimmModel(variant=name, options=options, weights=str(path))
    model = refit.build(10, 3, refit=True)
    assert "(head, head_dist) begins afresh: 1,000 classes there, 10 here" in model.anew
    assert torch.equal(model.net.cls_token, net.cls_token)


class Pair(torch.nn.Module):
    """A transformer whose only block gives its tokens twice."""

    num_prefix_tokens = 1

    def __init__(self):
        super().__init__()
        self.block = torch.nn.Identity()
        self.block.register_forward_hook(lambda module, inputs, tokens: (tokens, tokens))

    def forward(self, x):
        return self.block(x.flatten(2).transpose(1, 2))[0].mean(1)


@pytest.mark.parametrize("tap", ["block:map", "block"])
def test_a_module_that_puts_out_several_tensors_is_refused_by_name(tap):
    model = Normalised(Pair(), [0.5], [0.5], 3)
    views = torch.zeros((2, 3, 2, 2), dtype=torch.uint8)
    with pytest.raises(
        ModelError, match=rf"The output of {tap} of Pair is no tensor with a row"
    ):
        shapes_of(model, [tap_of(model, tap, views)], views)


def test_grey_images_are_taken_too(tmp_path):
    _, path = published_file(tmp_path, "vit_small_patch16_dinov3", 32)
    options = {"img_size": 32, **TINY}
    spec = TimmModel(
        variant="vit_small_patch16_dinov3", pretrained=str(path), options=options
    )
    assert bare(spec, 1).net.patch_embed.proj.weight.shape[1] == 1


def test_weights_of_another_network_are_never_half_loaded(tmp_path):
    _, path = published_file(tmp_path, "vit_base_patch16_clip_224", 32)
    for wrong in (
        TimmModel(variant="test_resnet", pretrained=str(path)),
        TimmModel(variant="test_resnet", weights=str(path)),
    ):
        with pytest.raises((ModelError, WeightsError)):
            bare(wrong, 3)


def test_who_has_no_weights_or_no_such_network_hears_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match=r"headless and has no weights.*pretrained: true"):
        bare(TimmModel(variant="test_resnet"), 3)
    path = tmp_path / "own.safetensors"
    spec = CifarResNet(depth=8, width=(4, 4, 8, 8))
    save_file(spec.architecture(10, 3).state_dict(), path)
    with pytest.raises(
        ModelError, match="last layer of models/cifar_resnet cannot be left out"
    ):
        bare(CifarResNet(depth=8, width=(4, 4, 8, 8), weights=str(path)), 3)
    with pytest.raises(
        ModelError, match=r"no weights of timm/test_resnet at .*nor a folder"
    ):
        published("test_resnet", str(tmp_path / "nothing"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        ModelError,
        match=r"model\.safetensors of https://huggingface\.co/timm/vit_small_patch16_dinov3"
        r".*pretrained: PATH",
    ):
        published("vit_small_patch16_dinov3")


def test_what_has_no_patches_is_said():
    model = TimmModel(variant="test_resnet").build(0, 3)
    views = torch.zeros((2, 3, 32, 32), dtype=torch.uint8)
    with pytest.raises(ModelError, match="no patch tokens"):
        tap_of(model, "patches", views)
    with pytest.raises(ModelError, match="a square of patches"):
        as_map(torch.zeros(2, 8, 4), 1)
