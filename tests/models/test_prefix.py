"""The first blocks of a network as a model."""

import pytest
import torch
from safetensors.torch import save_file

from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.config.seal import file_sha256
from kdlab.errors import ModelError
from kdlab.models.blocks import cut
from kdlab.models.model import ModelSpec, load_weights
from kdlab.models.prefix import Prefix
from kdlab.models.torchvision import TorchvisionModel


def network():
    return TorchvisionModel(variant="mobilenet_v2")


CUTS = ("features.3", "features.7")


@pytest.mark.parametrize(("last", "count"), [(False, 2), (True, 3)])
@pytest.mark.long
def test_it_puts_out_what_the_blocks_put_out(tmp_path, last, count):
    torch.manual_seed(0)
    whole = network().build(7, 3).eval()
    views = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    spec = Prefix(model=network(), cuts=CUTS, classes=7, all=last)
    # As a teacher gets it: the spec as plain values, the weights of the whole network.
    spec = construct(ModelSpec, from_dict(spec.to_dict(), "test"))
    path = tmp_path / "whole.safetensors"
    save_file(whole.net.state_dict(), path)
    served = spec.build(0, 3).eval()
    load_weights(served.net, path, file_sha256(path))
    expected = []
    with torch.no_grad():
        output = (views.float() - whole.mean) / whole.std
        for block in cut(whole.net, CUTS)[:count]:
            output = block(output)
            expected.append(output.flatten(1))
        assert torch.equal(served(views), torch.cat(expected, 1))


def test_a_cut_that_is_none_is_refused():
    spec = Prefix(model=network(), cuts=("features.99",), classes=7)
    with pytest.raises(ModelError, match=r"no module .features\.99."):
        spec.build(0, 3)
