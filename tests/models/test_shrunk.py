"""A student beside a teacher of larger images: it sees the mean of their pixels."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import interpolate

from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.models.model import ModelSpec, check_fit
from kdlab.models.shrunk import ShrunkModel

BLOCK = {"type": "models/shrunk", "model": "timm/test_resnet", "size": 32}


def spec(**more):
    return construct(ModelSpec, from_dict(BLOCK | more, "here"))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_it_answers_as_its_network_does_of_the_shrunk_view(k):
    torch.manual_seed(0)
    model = spec().build(5, 3).eval()
    inner = spec().model.build(5, 3).eval()
    inner.net.load_state_dict(
        {n.removeprefix("inner."): t for n, t in model.net.state_dict().items()}
    )
    views = torch.randint(0, 256, (4, 3, 32 * k, 32 * k), dtype=torch.uint8)
    means = views.numpy().reshape(4, 3, 32, k, 32, k).mean((3, 5), dtype=np.float64)
    small = (torch.from_numpy(means).float() - inner.mean) / inner.std
    assert torch.allclose(model(views), inner.net(small), atol=1e-4)
    assert torch.allclose(
        interpolate(views.float(), 32, mode="area"), torch.tensor(means).float()
    )


def test_its_network_begins_with_weights_of_other_classes(tmp_path):
    path = tmp_path / "inner.safetensors"
    inner = spec().model.build(5, 3)
    save_file(inner.net.state_dict(), path)
    named = spec(model={"type": "timm/test_resnet", "weights": str(path)})
    assert named.origin() == str(path)
    model = named.build(7, 3, refit=True)
    key = "conv1.0.weight"
    assert torch.equal(model.net.inner.state_dict()[key], inner.net.state_dict()[key])
    assert model.anew == "; its last layer (fc) begins afresh: 5 classes there, 7 here"


def test_the_file_of_the_whole_counts_more_than_that_of_its_network(tmp_path):
    """The inner file was loaded last, over the file that `origin` named."""
    files = [tmp_path / f"{name}.safetensors" for name in ("inner", "outer")]
    outer = spec().build(5, 3)
    for value, path in enumerate(files):
        net = outer.net.inner if path is files[0] else outer.net
        save_file({n: torch.full_like(t, value) for n, t in net.state_dict().items()}, path)
    inner = {"type": "timm/test_resnet", "weights": str(files[0])}
    named = spec(model=inner, weights=str(files[1]))
    assert named.origin() == str(files[1])
    assert named.build(5, 3).net.inner.state_dict()["conv1.0.weight"].unique().tolist() == [
        1
    ]


def test_a_file_that_nobody_reads_is_not_said_to_be_what_it_begins_with(tmp_path):
    inner = {"type": "models/cifar_vgg", "weights": str(tmp_path / "w.safetensors")}
    parts = construct(ModelSpec, from_dict({"type": "models/separable", "of": inner}, "t"))
    assert parts.origin() is None


def test_it_is_normalised_and_shown_as_its_network_is():
    shrunk, network = spec(), spec().model
    assert shrunk.normalisation() == network.normalisation()
    assert shrunk.evaluation(96) == network.evaluation(96)


@pytest.mark.parametrize("side", [80, 20])
def test_views_of_any_size_are_brought_to_its_own(side):
    model = spec().build(5, 3).eval()
    check_fit(model, (3, side, side), 5, "the student")
    views = torch.randint(0, 256, (4, 3, side, side), dtype=torch.uint8)
    model.eval()
    small = (views.float() - model.mean) / model.std
    small = interpolate(small, (32, 32), mode="bilinear", antialias=True)
    assert torch.equal(model(views), model.net.inner(small))


def test_a_network_at_a_size_takes_the_file_of_the_bare_one(tmp_path):
    bare, path = spec().model.build(5, 3), tmp_path / "bare.safetensors"
    save_file(bare.net.state_dict(), path)
    named = construct(
        ModelSpec, from_dict({"type": "timm/test_resnet", "weights": str(path)}, "t")
    )
    sized = ShrunkModel.from_model(named, 48)
    assert sized.weights == str(path)
    assert sized.model.weights is None
    model = sized.build(5, 3)
    for name, tensor in bare.net.state_dict().items():
        assert torch.equal(model.net.inner.state_dict()[name], tensor)


def test_nothing_is_fetched_for_the_network_inside_one_that_was_exported():
    inner = {"type": "timm/test_resnet", "pretrained": True}
    assert spec(model=inner).without_weights() == spec()
