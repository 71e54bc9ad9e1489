"""The teacher's first blocks from a source: split, checked against the plan, gone on with."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_pipelines import CPU, cutting

from kdlab.data.samples import RankPart
from kdlab.errors import KdlabError, SpecError
from kdlab.methods.blockwise.served_prefix import (
    PrefixLoader,
    ServedPrefix,
    measured_supply,
    split,
    width_of,
)
from kdlab.papers.pipe_bd.stages import Stage
from kdlab.soft_labels.scripted import Scripted
from kdlab.soft_labels.source import Batch

SHAPES = [(4, 2, 2), (3,)]
STAGE = Stage(0, 2, (5, 7), (30, 20), from_data=True)  # of two devices, for 50 rows


class Blocks:
    """A source whose answers say of which image they are; `wrong` swaps two rows."""

    def __init__(self, samples, wrong=False):
        self.samples, self.wrong = samples, wrong
        self.begun, self.closed = [], 0

    def epoch(self, epoch, done):
        self.begun.append((epoch, len(list(done))))
        for index, ids in enumerate(self.samples.batches(epoch)):
            if index in done:
                continue
            own = ids[::-1].copy() if self.wrong else ids
            soft = torch.from_numpy(own).float().view(-1, 1).repeat(1, width_of(SHAPES))
            views = torch.from_numpy(self.samples.views(own, epoch))
            labels = torch.from_numpy(self.samples.labels(own))
            yield Batch(index=index, ids=own, views=views, labels=labels, soft=soft)

    def close(self):
        self.closed += 1


def loader_of(samples, **options):
    opened = []

    def open_source(own, start):
        opened.append((Blocks(own, **options), start))
        return opened[-1][0]

    made = PrefixLoader(samples, STAGE, 7, cutting().student, SHAPES, open_source)
    return made, opened


def test_each_device_gets_its_rows_with_the_outputs_of_each_block(samples):
    loader, opened = loader_of(samples)
    loader.begin(0, 1)
    ((source, start),) = opened
    assert start == {"epoch": 0, "done": [0]}
    assert source.samples.part == RankPart(1, (30.0, 20.0))
    for step, ids in enumerate(samples.batches(0)[1:3]):
        views = loader(step, 30, 50)
        raw = torch.from_numpy(samples.views(ids[30:50], 0)).float()
        torch.testing.assert_close(views, (raw - loader.mean) / loader.std)
        outputs = loader.served()
        assert [tuple(o.shape) for o in outputs] == [(20, 4, 2, 2), (20, 3)]
        assert outputs[1][:, 0].long().tolist() == ids[30:50].tolist()
    loader.close()
    assert source.closed == 1


def test_after_a_pause_it_goes_on_and_elsewhere_it_begins_anew(samples):
    loader, opened = loader_of(samples)
    loader.begin(0, 0)
    loader(0, 30, 50)
    loader.begin(0, 1)  # where it stands
    loader(0, 30, 50)
    assert opened[0][0].begun == [(0, 0)]
    loader.begin(0, 1)
    loader(0, 30, 50)
    assert opened[0][0].begun == [(0, 0), (0, 1)]
    loader.begin(1, 0)
    loader(0, 30, 50)
    assert opened[0][0].begun[2:] == [(1, 0)]
    assert len(opened) == 1  # one source for all


def test_other_rows_than_the_plan_has_are_not_trained_on(samples):
    loader, _ = loader_of(samples, wrong=True)
    loader.begin(0, 2)
    with pytest.raises(KdlabError, match="other rows than batch 2 of epoch 0"):
        loader(0, 30, 50)


def test_a_loader_that_never_began_closes():
    loader = object.__new__(PrefixLoader)
    loader.source = None
    loader.close()


def test_rows_are_cut_into_tensors_of_their_own():
    soft = torch.arange(2 * 19.0).view(2, 19)
    one, other = split(soft, SHAPES, CPU)
    assert torch.equal(one.flatten(1), soft[:, :16])
    assert torch.equal(other, soft[:, 16:])
    one.zero_()
    assert soft[0, 1] == 1
    assert width_of(SHAPES) == 19
    with pytest.raises(RuntimeError):
        split(soft, [(4,)], CPU)


def test_what_a_source_delivers_is_counted_without_what_lay_ready(samples, monkeypatch):
    """24 batches of a clock on which each takes a second; the first eight do not count."""
    now = iter(np.arange(0, 1000.0))
    clock = SimpleNamespace(perf_counter=lambda: next(now))
    monkeypatch.setattr("kdlab.methods.blockwise.served_prefix.time", clock)
    many = SimpleNamespace(plan=SimpleNamespace(epochs=6))
    rate, take_s = measured_supply(Blocks(samples), many, SHAPES, CPU)
    assert take_s == 1.0
    counted = [len(ids) for e in range(6) for ids in samples.batches(e % 3)][8:24]
    # Two looks at the clock for each batch, one where counting begins, one in the end.
    assert rate == pytest.approx(sum(counted) / (2 * len(counted) + 1))


def test_a_source_that_cannot_serve_blocks_is_named():
    with pytest.raises(SpecError, match="source"):
        ServedPrefix(blocks=2, source=Scripted())
