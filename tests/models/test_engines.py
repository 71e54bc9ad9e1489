"""Engines answer as the network does, or are refused; the fastest that agrees is taken."""

import copy
import sys
from importlib import import_module
from importlib.util import find_spec
from threading import Thread
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from torch import nn

from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.data.images import DataSpec
from kdlab.events.event import discard_event
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.engines import Engine, available_engines, choose, exported
from kdlab.models.engines.choose import Tally, prepare_engine
from kdlab.models.engines.in_torch import fold_batch_norms
from kdlab.models.model import Normalised
from kdlab.train.teacher import TeacherSpec, prepare

VIEWS = torch.randint(
    0, 256, (8, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


def agreement(right, answers):
    """Largest difference of a probability, and the share of rows with the same likeliest class."""
    tally = Tally()
    tally.add(right, answers)
    facts = tally.facts("fp32")
    return facts["furthest"], facts["same_top1"]


def asked_often(net):
    """Give batch norms statistics: fresh ones would be folded into nothing."""
    generator = torch.Generator().manual_seed(1)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3, generator=generator)
            part.running_var.uniform_(0.5, 2, generator=generator)
            nn.init.uniform_(part.weight, 0.5, 1.5, generator=generator)
            nn.init.uniform_(part.bias, -0.3, 0.3, generator=generator)
    return net.eval()


def network(name="resnet"):
    torch.manual_seed(0)
    if name == "resnet":
        return asked_often(CifarResNet(depth=8, width=(8, 16, 32)).build(10, 3))
    net = timm.create_model(name, num_classes=10)
    return asked_often(Normalised(net, (0.5,), (0.25,), 10))


@pytest.mark.parametrize(
    "name",
    [
        "resnet",
        "resnet10t",
        "mobilenetv3_small_050",
        "convnext_atto",
        "vit_tiny_patch16_224",
    ],
)
@torch.inference_mode()
@pytest.mark.long
def test_folding_changes_no_answer(name):
    model = network(name)
    views = VIEWS if "vit" not in name else VIEWS.repeat(1, 1, 7, 7)[:2]
    before = [p.clone() for p in model.parameters()]
    folded = fold_batch_norms(model, views)
    furthest, same = agreement(model(views), folded(views))
    assert (furthest < 1e-5, same) == (True, 1.0)
    left = [part for part in folded.modules() if isinstance(part, nn.BatchNorm2d)]
    assert left == []
    assert all(map(torch.equal, before, model.parameters()))  # it is a copy


class Shared(nn.Module):
    """A convolution that is used twice, and one that is used once."""

    def __init__(self):
        super().__init__()
        self.twice, self.once = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(3))

    def forward(self, x):
        x = self.norms[0](self.twice(x.float() / 255))
        x = self.norms[1](self.twice(x))
        return self.norms[2](self.once(x)).mean((2, 3))


@torch.inference_mode()
def test_what_is_used_twice_is_not_folded():
    model = asked_often(Shared())
    folded = fold_batch_norms(model, VIEWS)
    assert [type(n).__name__ for n in folded.norms] == [
        "BatchNorm2d",
        "BatchNorm2d",
        "Identity",
    ]
    assert torch.allclose(model(VIEWS), folded(VIEWS), atol=1e-5)


def liar(by):
    def prepare(model, views, threads):
        return lambda inputs: model(inputs) + by(model(inputs))

    return Engine("liar", "bf16", prepare)


def broken(model, views, threads):
    raise RuntimeError("this operator is unknown\nand more")


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (liar(lambda right: torch.eye(10)[:8] * 3), "a probability is"),
        (liar(lambda right: right * float("nan")), "a probability is nan off"),
        (Engine("broken", "fp32", broken), "RuntimeError: this operator is unknown"),
    ],
)
def test_one_that_says_something_else_is_refused_with_the_numbers(engine, why):
    choice = choose(network(), VIEWS, [engine], threads=1, seconds=0)
    assert choice.chosen.label == "eager fp32"
    assert why in choice.trials[-1].refused
    assert why in str(choice)
    assert torch.equal(choice.ask(VIEWS), network()(VIEWS))


def scores(rows, wrong=0, moved=0.0):
    """Return logits of two nearly equal classes, and answers: some reversed, or all moved."""
    right = torch.tensor([[1.0, 0.999]]).repeat(rows, 1)
    answers = right.clone()
    answers[:wrong] = answers[:wrong].flip(1)
    answers[:, 0] += moved
    return right, answers


@pytest.mark.parametrize(
    ("pair", "why"),
    [
        (scores(1000, wrong=5), ""),
        (scores(1000, wrong=6), "differs in 6 of 1000 views; at most 5 in 1,000"),
        (scores(100, wrong=5), ""),  # a few of few say nothing yet
        (scores(100, wrong=6), "differs in 6 of 100"),
        (scores(1000, moved=0.3), "a probability is 0.074 off; bf16 may be 0.05 off"),
        (scores(1000, moved=0.12), "answers diverge by 0.0018 nats, more than 0.001"),
    ],
)
def test_answers_are_judged_by_the_harm_that_they_do(pair, why):
    tally = Tally()
    for right, answers in zip(*(scores.split(90) for scores in pair), strict=True):
        tally.add(right, answers)  # requests come in parts
    assert why in (trouble := tally.trouble("bf16"))
    assert bool(trouble) == bool(why)


def test_one_view_in_a_thousand_may_be_far_off_in_half_precision_alone():
    right, answers = scores(2000)
    answers[0, 0] += 0.4
    tally = Tally()
    tally.add(right, answers)
    assert tally.trouble("bf16") == ""
    assert "a probability is 0.099 off" in tally.trouble("fp32")


def test_bf16_serves_the_teacher_that_comes_with_kdlab():
    """The largest difference of 200 samples refused it in nearly all windows."""
    data = construct(DataSpec, compose_card("data/clothes")).load()
    spec = construct(TeacherSpec, compose_card("teachers/clothes_resnet"))
    model = prepare(spec, discard_event).build(10, 3).eval()
    tally, half = Tally(), copy.deepcopy(model)
    half.net.bfloat16()
    half.forward = lambda views: half.net(
        ((views - half.mean) / half.std).bfloat16()
    ).float()
    with torch.inference_mode():
        for rows in np.array_split(data.train[:1024], 8):
            views = torch.from_numpy(data.views(rows, 0))
            tally.add(model(views), half(views))
    assert tally.trouble("bf16") == ""
    assert "may be 0.0001 off" in tally.trouble("fp32")


def test_what_compiles_is_left_out_when_its_time_is_over():
    slow = Engine("slow", "fp32", broken, slow_to_prepare=True)
    choice = choose(network(), VIEWS, [slow], threads=1, seconds=0)
    assert "not tried" in choice.trials[-1].refused


QUICK = [engine for engine in available_engines("cpu") if engine.name != "compiled"]


@pytest.mark.parametrize("engine", QUICK, ids=lambda engine: engine.label)
@pytest.mark.long
def test_each_answers_outside_of_inference_mode(engine, monkeypatch):
    """Whichever is fastest on this machine, who asks need not know how it was made."""
    # Take the engine that is tried, however fast this machine is at the moment.
    monkeypatch.setattr(import_module("kdlab.models.engines.choose"), "WORTH", 0.0)
    model = network()
    choice = choose(model, VIEWS, [engine], threads=1, seconds=0.5)
    assert choice.chosen.label == engine.label
    furthest, _ = agreement(model(VIEWS[:5]), choice.ask(VIEWS[:5]))
    assert furthest < 1e-2


@pytest.mark.long
def test_every_engine_of_this_machine_agrees_or_says_why_not():
    assert {"folded", "folded-planar"} <= {e.name for e in QUICK}
    model = network()
    choice = choose(model, VIEWS, QUICK, threads=1, seconds=3600)
    tried = {t.label: t.refused for t in choice.trials}
    assert tried["folded fp32"] == tried["folded-planar fp32"] == ""
    if find_spec("onnxruntime"):
        assert tried["onnxruntime fp32"] == ""
    sizes = [VIEWS[:1], VIEWS[:5], VIEWS]  # requests differ
    for views in sizes:
        furthest, _ = agreement(model(views), choice.ask(views))
        assert furthest < 1e-2


def test_int8_is_judged_as_half_precision_is():
    for pair in (scores(1000, wrong=6), scores(1000, moved=0.3), scores(1000, wrong=5)):
        tally = Tally()
        tally.add(*pair)
        assert tally.trouble("int8") == tally.trouble("bf16").replace("bf16", "int8")


@pytest.mark.parametrize(
    ("installed", "shown", "there"),
    [
        (("openvino", "nncf"), lambda: VIEWS, True),
        (("openvino", "nncf"), None, False),  # made-up images tell no ranges
        (("openvino",), lambda: VIEWS, False),
        (("nncf",), lambda: VIEWS, False),
    ],
)
def test_int8_is_there_with_its_libraries_and_views(installed, shown, there, monkeypatch):
    monkeypatch.setattr(exported, "find_spec", lambda name: name in installed or None)
    assert ("int8" in {e.precision for e in available_engines("cpu", shown)}) == there
    assert "int8" not in {e.precision for e in available_engines("cuda:0", shown)}


@pytest.mark.skipif(not find_spec("nncf"), reason="kdlab[int8] is not installed")
@pytest.mark.long
def test_a_network_in_int8_is_kept_for_the_next_teacher(kdlab_home, monkeypatch):
    import nncf

    model, asked = network(), []
    monkeypatch.setattr(nncf, "quantize", tracked(nncf.quantize, asked))
    for shown in (VIEWS, VIEWS, VIEWS.flip(0)):
        engine = next(e for e in exported.engines(lambda: shown) if e.precision == "int8")  # noqa: B023
        with torch.inference_mode():
            furthest, _ = agreement(
                model(VIEWS), engine.prepare(model, VIEWS[:2], 1)(VIEWS)
            )
        assert furthest < 0.2
    assert len(asked) == 2  # other views are another calibration


def test_quantising_draws_no_bars_and_leaves_the_output_of_other_threads(
    kdlab_home, monkeypatch, capsys
):
    """Fakes stand for openvino and for nncf, which draws progress bars."""
    names = ("nncf", "nncf.common", "nncf.common.logging", "openvino")
    fakes = {name: ModuleType(name) for name in names}
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    drawn, bars = [], SimpleNamespace(Progress=lambda *rest, disable: drawn.append(disable))
    fakes["nncf.common.logging"].track_progress = bars
    before = bars.Progress

    def quantize(network, views, subset_size):
        bars.Progress("a column", disable=False)
        thread = Thread(target=print, args=("of another thread",))
        thread.start(), thread.join()
        return "quantised"

    fakes["nncf"].quantize, fakes["nncf"].Dataset = quantize, lambda *arguments: None
    fakes["nncf"].__version__ = fakes["openvino"].__version__ = "0"
    fakes["openvino"].save_model = lambda network, path, **rest: [
        path.with_suffix(suffix).touch() for suffix in (".xml", ".bin")
    ]
    monkeypatch.setattr(exported, "_convert", lambda model, views: "network")
    assert exported._quantise(torch.nn.Linear(1, 1), VIEWS, VIEWS) == "quantised"
    assert drawn == [True]
    assert bars.Progress is before
    assert capsys.readouterr().out == "of another thread\n"


def tracked(call, asked):
    def tracking(*arguments, **options):
        asked.append(arguments)
        return call(*arguments, **options)

    return tracking


@pytest.mark.parametrize("error", [AssertionError(), RuntimeError("\n")])
def test_an_error_without_a_text_is_said_by_its_name(error):
    def prepare(model, views, threads):
        raise error

    views = torch.zeros(4, 3, 4, 4)
    trial, ask = prepare_engine(Engine("broken", "fp32", prepare), None, views, views, 1)
    assert ask is None
    assert trial.refused == f"{type(error).__name__}: "
