"""timm's own arguments of a model, checked before anything starts."""

import pytest
import timm
import torch

import kdlab
from kdlab.errors import SpecError
from kdlab.models.blocks import cut
from kdlab.models.timm import TimmModel

VIT = {"img_size": 32, "patch_size": 8, "depth": 3, "embed_dim": 48, "num_heads": 3}


def test_it_is_the_model_that_timm_makes_of_them():
    spec = TimmModel(variant="vit_tiny_patch16_224", options=VIT, drop_path_rate=0.1)
    torch.manual_seed(0)
    ours = spec.architecture(10, 1)
    torch.manual_seed(0)
    theirs = timm.create_model(
        "vit_tiny_patch16_224", num_classes=10, in_chans=1, drop_path_rate=0.1, **VIT
    )
    for (name, tensor), (their_name, expected) in zip(
        ours.state_dict().items(), theirs.state_dict().items(), strict=True
    ):
        assert name == their_name
        assert torch.equal(tensor, expected)
    assert ours.blocks[-1].drop_path1.drop_prob == pytest.approx(0.1)
    assert spec.without_weights().options == VIT


def test_images_of_any_size_where_the_model_takes_them():
    spec = TimmModel(
        variant="vit_tiny_patch16_224", options={"dynamic_img_size": True, "depth": 1}
    )
    model = spec.build(10, 3).eval()
    with torch.inference_mode():
        for side in (32, 64):
            views = torch.zeros((1, 3, side, side), dtype=torch.uint8)
            assert model(views).shape == (1, 10)


@pytest.mark.parametrize(
    ("variant", "options", "words"),
    [
        (
            "vit_tiny_patch16_224",
            {"img_sise": 32},
            r"options\.img_sise: is no argument of timm's vit_tiny_patch16_224 "
            r"\(VisionTransformer\)\. Nearest: img_size",
        ),
        ("resnet18", {"img_size": 32}, r"options\.img_size: is no argument .*\(ResNet\)"),
        ("vit_tiny_patch16_224", {"num_classes": 3}, r"options\.num_classes: is no argument"),
        ("vit_tiny_patch16_224", {"img_size": "large"}, r"cannot be used: .*img_size=large"),
        ("vit_tiny_patch16_224", {"embed_dim": 50, "num_heads": 3}, "options: cannot be used"),
        ("deit_tiny_distilled_patch16_224", {"foo": 1}, r"options\.foo: is no argument"),
        ("vit_tiny_patch16_224", {"depth": 10**9}, r"options\.depth: is 1000000000, must"),
        ("vit_tiny_patch16_224", {"checkpoint_path": "a"}, r"options\.checkpoint_path: is no"),
        ("resnet18", {"features_only": True}, r"options\.features_only: is no argument"),
        ("coatnet_nano_cc_224", {"foo": 1}, r"options\.foo: is no argument"),
    ],
    ids=str,
)  # fmt: skip
def test_what_the_model_does_not_take_is_found_before_anything_starts(
    variant, options, words
):
    with pytest.raises(SpecError, match=words):
        TimmModel(variant=variant, options=options)


def test_a_config_says_them_and_a_run_keeps_them():
    student = {"type": "timm/vit_tiny_patch16_224", "options": VIT}
    spec = kdlab.load("smoke/none", {"student": student}).spec
    assert spec.student.options == VIT
    assert spec.student.to_dict()["options"] == VIT
    assert hash(spec.student) == hash(spec.student)


def test_a_vit_is_cut_behind_its_blocks():
    net = TimmModel(variant="vit_tiny_patch16_224", options=VIT).architecture(10, 3).eval()
    pieces = cut(net, ["blocks.0", "blocks.1"])
    assert len(pieces) == 3
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        tokens = pieces[0](x)
        assert tokens.shape == (2, 17, 48)
        assert torch.allclose(pieces[2](pieces[1](tokens)), net(x), atol=1e-5)
