"""Networks cut into blocks: the same numbers, the same parameters, clear refusals."""

import pytest
import timm
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from kdlab.errors import ModelError
from kdlab.models.blocks import Cuttable, check_composition, cut, fair_ends, operations

NETWORKS = {
    "vgg16_bn": lambda: torchvision.models.vgg16_bn(num_classes=10, init_weights=False),
    "resnet18": lambda: torchvision.models.resnet18(num_classes=10),
    "mobilenet_v2": lambda: torchvision.models.mobilenet_v2(num_classes=10),
    "googlenet": lambda: torchvision.models.googlenet(
        num_classes=10, aux_logits=False, init_weights=False
    ),
    "timm resnet": lambda: timm.create_model("resnet18", num_classes=10),
    "efficientnet": lambda: timm.create_model("efficientnet_b0", num_classes=10),
    "convnext": lambda: timm.create_model("convnext_atto", num_classes=10),
    "vit": lambda: timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=64),
    "deit": lambda: timm.create_model(
        "deit_tiny_distilled_patch16_224", num_classes=10, img_size=64
    ),
}


OF_TIMM = [
    "beit_base_patch16_224", "coatnet_nano_rw_224", "davit_tiny", "densenet121",
    "dm_nfnet_f0", "efficientformer_l1", "efficientvit_b0", "eva02_tiny_patch14_224",
    "focalnet_tiny_srf", "ghostnet_100", "hrnet_w18_small", "levit_128s",
    "maxvit_nano_rw_256", "mixer_s32_224", "mobilenetv4_conv_small", "mobilevit_s",
    "regnety_002", "swin_tiny_patch4_window7_224", "tiny_vit_5m_224", "vgg11",
    "volo_d1_224",
]  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.long
def test_blocks_one_behind_the_other_are_the_network(name):
    torch.manual_seed(0)
    net = NETWORKS[name]()
    cuttable = Cuttable(net)
    views = torch.randn(2, 3, 64, 64)
    for count in (1, 2, 6):
        blocks = cuttable.blocks(
            cuttable.balanced_cuts(count, lambda pieces: operations(pieces, views))
        )
        assert len(blocks) == count
        check_composition(net, blocks, views)
        owned = [{id(p) for p in block.parameters()} for block in blocks]
        assert set.union(*owned) == {id(p) for p in net.parameters()}
        assert sum(map(len, owned)) == len(set.union(*owned))  # each in one block


@pytest.mark.parametrize("name", OF_TIMM)
@pytest.mark.nightly
def test_of_timm_nearly_all_can_be_cut(name):
    torch.manual_seed(0)
    # In training, as students are cut; GhostNet drops out by a function, which would be traced
    net = timm.create_model(name, num_classes=10, drop_rate=0.0)
    views = torch.randn(2, *net.pretrained_cfg["input_size"])
    cuttable = Cuttable(net)
    cuts = cuttable.balanced_cuts(4, lambda pieces: operations(pieces, views))
    check_composition(net, cuttable.blocks(cuts), views)


def test_a_network_whose_path_depends_on_its_input_cannot():
    with pytest.raises(
        ModelError, match=r"MultiScaleVit cannot be cut .* Take one that does not"
    ):
        Cuttable(timm.create_model("mvitv2_tiny", num_classes=10))


def test_places_are_named_by_the_largest_module_that_ends_there():
    places = [cut.after for cut in Cuttable(NETWORKS["timm resnet"]()).distinct_cuts()]
    assert places[3:8] == ["maxpool", "layer1.0", "layer1", "layer2.0", "layer2"]


def test_training_the_blocks_trains_the_network():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    first, second = cut(net, ["1"])
    views = torch.randn(2, 3, 8, 8)
    loss = second(first(views).detach()).sum()
    loss.backward()
    assert net[0].weight.grad is None
    assert net[3].weight.grad is not None
    with torch.no_grad():
        second.get_submodule("3").weight.zero_()
    assert not net[3].weight.any()


def test_a_blocks_output_is_not_changed_by_the_next_block():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1))
    first, second = cut(net, ["0"])
    with torch.no_grad():
        out = first(torch.randn(1, 3, 4, 4))
        before = out.clone()
        second(out)
    assert torch.equal(out, before)


def test_a_cut_through_a_skip_connection_names_it():
    with pytest.raises(
        ModelError, match=r"maxpool is used by add, layer1\.0\.conv1, which"
    ):
        cut(NETWORKS["resnet18"](), ["layer1.0.conv1"])


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (
            ["layer1.0.con"],
            r"no module 'layer1\.0\.con' in ResNet\. Nearest: layer1\.0\.conv",
        ),
        (["fc"], "is the end of ResNet"),
        (["layer1", "layer1.1"], "are the same place"),
    ],
)
@pytest.mark.long
def test_cuts_that_cannot_be(names, why):
    with pytest.raises(ModelError, match=why):
        cut(NETWORKS["resnet18"](), names)


def test_more_blocks_than_places():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    with pytest.raises(ModelError, match="can be cut into 1 to 2 blocks, not into 9"):
        Cuttable(net).balanced_cuts(9, lambda pieces: [1.0] * len(pieces))


def test_a_path_that_depends_on_its_input_is_refused():
    class Branches(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(ModelError, match="its path depends on its input"):
        Cuttable(Branches())


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=9), st.integers(1, 9))
def test_fair_ends_are_the_best(costs, count):
    from itertools import combinations

    if count > len(costs):
        return

    def largest(ends):
        return max(sum(costs[a:b]) for a, b in zip([0, *ends], ends, strict=False))

    fair = fair_ends(costs, count)
    assert len(fair) == count
    assert fair[-1] == len(costs)
    best = min(
        largest([*inner, len(costs)])
        for inner in combinations(range(1, len(costs)), count - 1)
    )
    assert largest(fair) == pytest.approx(best)
