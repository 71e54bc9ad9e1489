"""The GPU bench's absolute numbers, tested without a GPU: tiny networks on the CPU."""

import pytest

from benchmarks import gpu
from kdlab.errors import BadInput


@pytest.mark.slow("a network is taught, and engines are measured for ten seconds")
@pytest.mark.nightly
def test_labels_a_second_are_absolute_bare_and_served(kdlab_home, monkeypatch):
    for name, value in {"_DEVICE": "cpu", "_STEPS": 2, "_TURNS": 1, "_TAUGHT": 3}.items():
        monkeypatch.setattr(gpu, name, value)
    lines = []
    tiny = {"tiny": ("timm/test_resnet", 1e-3, 8)}
    figures = gpu._labels_per_s(1, lines.append, tiny)
    names = [(f["name"], f["unit"]) for f in figures]
    assert names == [
        ("labels_per_s/tiny/bare", "labels/s"),
        ("labels_per_s/tiny/served", "labels/s"),
    ]
    assert all(f["value"] > 0 for f in figures)
    assert "labels_per_s/tiny: bare" in lines[-1]


def test_the_published_networks_are_timms():
    import timm

    for variant, *_ in gpu.PUBLISHED.values():
        assert timm.is_model(variant.removeprefix("timm/"))


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match="needs a GPU"):
        gpu.measure()
