"""Teachers on a GPU: engines agree, batches in flight do not mix, memory is pinned."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, interpolate

import kdlab
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.reader.ring import Layout, Ring
from kdlab.cluster.teachers.inference import Inference, Request
from kdlab.cluster.teachers.probe import DataIdentity
from kdlab.models.device_feed import DeviceFeed, PendingResult, pin, unpin
from kdlab.models.engines import available_engines, choose
from kdlab.models.engines.choose import prepare_engine
from kdlab.models.timm import TimmModel

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
GPU = torch.device("cuda:0")


@pytest.fixture(scope="module")
def resnet():
    """It has learnt what it is asked, as teachers have: made-up weights tie classes."""
    torch.manual_seed(0)
    model = TimmModel(variant="resnet18").build(10, 3).to("cuda")
    labels = torch.arange(64, device="cuda") % 10
    coarse = torch.rand((10, 3, 4, 4), device="cuda")[labels]
    kinds = interpolate(coarse, size=(64, 64), mode="bilinear")
    views = (200 * kinds + 50 * torch.rand_like(kinds)).to(torch.uint8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(model(views), labels).backward()
        optimizer.step()
    return model.eval().requires_grad_(requires_grad=False), views


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("engine", ["folded", "folded-planar", "compiled"])
def test_an_engine_answers_as_the_network_does(resnet, engine, precision):
    model, views = resnet
    named = {e.label: e for e in available_engines("cuda:0")}
    with torch.inference_mode():
        right = model(views).float()
        candidate = named[f"{engine} {precision}"]
        trial, ask = prepare_engine(candidate, model, views, right, 1)
        assert ask is not None, trial
        for rows in (64, 1, 33):  # and sizes it was not prepared with
            assert ask(views[:rows]).shape == (rows, 10)


def test_the_fastest_is_chosen_and_is_no_slower_than_eager(resnet):
    model, views = resnet
    quick = [e for e in available_engines("cuda:0") if not e.slow_to_prepare]
    choice = choose(model, views, quick, threads=1, seconds=10.0)
    assert choice.chosen.rate >= choice.trials[0].rate
    assert {t.precision for t in choice.trials} == {"fp32", "bf16", "fp16"}


def serving(resnet):
    model, views = resnet
    deployment = Deployment(
        members=(),
        teacher="t",
        num_classes=10,
        shape=tuple(views.shape[1:]),
        batch=64,
        data={},
        identity=DataIdentity(digest="", images=0, classes=(), augment="", views=""),
        by_reference=False,
        components={},
    )

    class Serving(Inference):
        def _load(self, weights):
            return model

    return Serving(deployment, [], 1, "cuda")


def test_what_is_under_way_is_answered_by_its_own_labels(resnet):
    """Sixteen batches are begun before the first is finished; memory goes round meanwhile."""
    inference, got = serving(resnet), {}
    chance = np.random.default_rng(0)
    asked = [
        chance.integers(0, 256, (64, 3, 64, 64), dtype=np.uint8, endpoint=False)
        for _ in range(16)
    ]
    under_way = []
    for number, views in enumerate(asked):
        request = Request(
            0, None, views.copy(), lambda a, n=number: got.update({n: a}), inference
        )
        under_way += inference.begun([request])
        request.views[:] = 0  # its buffer is somebody else's from now on
    for batch in under_way:
        inference.finish(batch)
    model, _ = resnet
    with torch.inference_mode():
        for number, views in enumerate(asked):
            right = model(torch.from_numpy(views).cuda()).cpu().numpy()
            assert np.allclose(got[number], right, atol=1e-4), number
    assert inference.answered == 16
    assert inference.t_t > 0


def test_a_feed_copies_beside_the_work_and_loses_nothing():
    feed = DeviceFeed(GPU)
    source = torch.empty((256, 1024), pin_memory=True)
    busy = torch.randn(4096, 4096, device=GPU)
    for round_ in range(20):
        source.fill_(round_)
        for _ in range(5):
            busy = busy @ busy / 100
        (there,) = feed.to_device(source)
        feed.wait()
        source.fill_(-1)  # may be overwritten now
        assert float(there.min()) == float(there.max()) == round_
    result = PendingResult(torch.arange(6.0, device=GPU).reshape(3, 2))
    assert result.get().tolist() == [[0, 1], [2, 3], [4, 5]]
    assert result.is_ready


def test_a_ring_is_pinned_and_a_gpu_reads_what_was_written():
    ring = Ring.create(Layout(slots=4, largest=64, shape=(3, 64, 64), classes=10))
    assert pin(*ring.memory)
    views = torch.from_numpy(ring.slot(3).views)
    views.fill_(7)
    assert views.is_pinned()
    (there,) = DeviceFeed(GPU).to_device(views)
    assert bool((there == 7).all())
    unpin(ring.memory[0])
    assert not torch.from_numpy(ring.slot(3).views).is_pinned()
    ring.close()


@pytest.mark.processes
@pytest.mark.parametrize("engine", ["eager", "auto"])
def test_a_pool_serves_from_a_gpu(kdlab_home, elsewhere, engine):
    words = (f"teacher_pool.engine={engine}", "teacher_pool.device=cuda", "train.epochs=4")
    run = kdlab.load("smoke/served", *words, "tracking.enabled=false")
    run = run.start(lambda line: None).wait(timeout_s=600)
    result = run.result
    assert result["samples_lost"] == result["samples_repeated"] == 0
    if engine == "auto":
        assert result["teacher_engines"]
