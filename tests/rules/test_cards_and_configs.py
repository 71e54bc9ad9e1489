"""Every shipped card resolves and every shipped config is a valid experiment."""

import pytest

import kdlab
from kdlab.config import folders
from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.run.catalogue import catalogue, describe

CARDS = sorted(folders.names("registry"))
CONFIGS = sorted(n for n in folders.names("configs") if not n.startswith("sweeps/"))
SWEEPS = sorted(n for n in folders.names("configs") if n.startswith("sweeps/"))


@pytest.mark.parametrize("name", CARDS)
def test_card(name):
    from benchmarks.reproduce.table import Table
    from kdlab.cluster.pool import PoolSpec
    from kdlab.data.images import DataSpec
    from kdlab.losses.soft_loss import LossSpec
    from kdlab.models.model import ModelSpec
    from kdlab.simulate.kind import SimulationSpec
    from kdlab.simulate.profile import RateProfile
    from kdlab.train.teacher import TeacherSpec

    kinds = {"data": DataSpec, "models": ModelSpec, "students": ModelSpec,
             "teachers": TeacherSpec, "teacher_pools": PoolSpec,
             "profiles": RateProfile, "simulations": SimulationSpec,
             "losses": LossSpec, "claims": Table}  # fmt: skip
    assert construct(kinds[name.split("/")[0]], compose_card(name))
    assert f"  {name}" in catalogue("all")
    assert folders.display(folders.find("registry", name)) in describe(name)


@pytest.mark.parametrize("name", CONFIGS)
def test_config(name):
    experiment = kdlab.load(name)
    assert experiment.composed.data.get("about"), f"{name} has no about: line"
    assert experiment.hash in describe(name)


@pytest.mark.parametrize("name", SWEEPS)
def test_sweep(name):
    from kdlab.tuning import search

    assert search(name).spec.about, f"{name} has no about: line"
    assert name in catalogue("sweeps")
    assert "space:" in describe(name)


@pytest.mark.parametrize("shelf", ["registry", "configs"])
def test_every_file_says_what_it_is(shelf):
    for name, path in folders.names(shelf).items():
        assert path.read_text().startswith("about: "), name


def test_show_prints_where_each_value_comes_from():
    text = describe("quickstart", ["train.epochs=2"])
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert lines["train.epochs"].endswith("override")
    assert "configs/quickstart.yaml:" in lines["train.batch"]
    assert "registry/teachers/digits_resnet.yaml:" in lines["teacher.model.depth"]
    assert lines["train.momentum"].endswith("default")


def test_show_a_component_prints_fields_with_ranges():
    text = describe("losses/hinton")
    assert "kdlab/losses/hinton.py" in text
    assert [
        line
        for line in text.splitlines()
        if line.split()[:3] == ["temperature", "4.0", ">"]
    ]


def test_the_overview_fits_a_screen():
    lines = catalogue().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert "quickstart" in next(line for line in lines if line.startswith("configs ("))


def test_a_word_is_looked_for_in_names_and_lines():
    listing = catalogue(word="VGG")
    assert "  type  models/cifar_vgg  " in listing
    assert "pipe_bd/vgg16_dsconv_imagenet" in listing
    assert "losses/hinton" not in listing
    assert "models/vgg8" in catalogue("models", "vgg")
    with pytest.raises(kdlab.KdlabError, match=r"Nothing has 'hintn' .*hinton"):
        catalogue(word="hintn")


def test_unknown_kind_lists_the_kinds():
    with pytest.raises(kdlab.KdlabError, match=r"Nearest: losses"):
        catalogue("loses")
