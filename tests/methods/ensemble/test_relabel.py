"""Relabelling holds one foreign model at a time, whatever their number."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.data.images import DataSpec
from kdlab.data.samples import planned
from kdlab.methods.ensemble import relabel as module
from kdlab.methods.ensemble.exchange import publish
from kdlab.methods.ensemble.relabel import relabel
from kdlab.methods.ensemble.stream import Stream
from kdlab.models.patch_net import PatchNet

SCRIPT = """
import json, resource, sys, tempfile
from pathlib import Path
import numpy as np, torch
from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.data.images import DataSpec
from kdlab.data.samples import planned
from kdlab.models.patch_net import PatchNet
from kdlab.methods.ensemble.exchange import publish
from kdlab.methods.ensemble.relabel import relabel
from kdlab.methods.ensemble.stream import Stream

torch.set_num_threads(1)
spec = construct(DataSpec, compose_card("data/digits_tiny"))
samples = planned(spec.load(), spec.to_dict(), batch=20, seed=0, epochs=1)
model = PatchNet(patch=8, width=2000, depth=3)  # 12 M weights: 48 MB
own, scratch = model.build(10, 1), model.build(10, 1)
with tempfile.TemporaryDirectory() as folder:
    files = [publish(own.net, 0, Path(folder) / "w.safetensors")]
    places = Stream(samples).ahead(4)
    relabel(places, samples, files, lambda _: scratch, 80)  # all that is made once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    relabel(places, samples, files * int(sys.argv[1]), lambda _: scratch, 80)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([files[0].bytes, 1024 * (after - before), 1024 * before]))
"""


@pytest.mark.processes
@pytest.mark.parametrize("models", [pytest.param(2, marks=pytest.mark.nightly), 8])
def test_memory_does_not_grow_with_the_number_of_models(kdlab_home, models):
    command = [sys.executable, "-c", SCRIPT, str(models)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    size, grown, _ = json.loads(output)
    assert size > 40e6
    assert grown < size / 2


def test_a_view_that_comes_again_is_computed_once(tmp_path, monkeypatch):
    """Five epochs of images that are flipped or not: two views of each at most."""
    plain = construct(DataSpec, compose_card("data/digits_tiny"))
    spec = replace(plain, augment=type(plain.augment)(flip=True))
    samples = planned(spec.load(), spec.to_dict(), batch=20, seed=0, epochs=5)
    torch.manual_seed(0)
    model, scratch = (PatchNet(patch=8, width=16).build(10, 1) for _ in range(2))
    files = [publish(model.net, 0, tmp_path / "w.safetensors")] * 2
    count = len(samples.plan.ids)
    places = Stream(samples).ahead(5 * samples.plan.batches)
    computed = []
    really = module.probabilities

    def counted(net, views, alive):
        def each():
            for some in views:
                computed.append(len(some))
                yield some

        return really(net, each(), alive)

    monkeypatch.setattr(module, "probabilities", counted)
    labels = relabel(places, samples, files, lambda _: scratch, 64)
    assert len(labels.mean) == 5 * count
    assert count < sum(computed) / 2 <= 2 * count
    views = np.concatenate([samples.views(p.ids, p.epoch) for p in places])
    with torch.inference_mode():
        expected = model.eval()(torch.from_numpy(views)).softmax(1)
    assert torch.allclose(labels.mean, expected, atol=1e-6)
    # In one epoch no view comes twice, so none is compared.
    computed.clear()
    relabel(places[: samples.plan.batches], samples, files, lambda _: scratch, 64)
    assert sum(computed) / 2 == count
