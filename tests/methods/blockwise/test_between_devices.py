"""What devices tell each other: sums some steps later, whole blocks, and who has which."""

import pytest
import torch
from small_pipelines import CPU, cutting, job, programme, weights
from student_loops import Recorder
from threaded_ranks import in_threads

from kdlab.changes.request import ChangeRequest
from kdlab.methods.blockwise.consensus import StepConsensus
from kdlab.methods.blockwise.device_stages import DeviceStages
from kdlab.methods.blockwise.gathering import Gathering
from kdlab.methods.blockwise.loader import Loader
from kdlab.methods.blockwise.loop import BlockwiseLoop
from kdlab.methods.blockwise.on_copies import OnCopies, measured_sharing, step_s
from kdlab.methods.blockwise.planning import gathered, kind_of, measured_links
from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts
from kdlab.papers.pipe_bd.stages import pipeline
from kdlab.supervision.process_groups import group_of_all
from kdlab.train.recipe import Recipe

QUIET = ChangeRequest(values=(1.0,))


def test_all_hear_of_a_step_when_all_have_spoken_for_long():
    def device(rank):
        consensus = StepConsensus(group_of_all("gloo"), blocks=3, lag=2)
        heard = []
        for step in range(5):
            losses = {0: 1.0 + step} if rank == 0 else {1: 2.0, 2: 3.0}
            settings = (1.0,) if rank == 0 else (0.0,)
            stop = rank == 1 and step == 3
            consensus.report(step, losses, ChangeRequest(stop=stop, values=settings))
            heard.append(list(consensus.agreed_at(step)))
        heard.append(list(consensus.agreed_at(6)))
        return heard

    one, other = in_threads(2, device)
    assert one == other
    assert one[:2] == [[], []]  # too early for any
    assert one[2] == [(0, [1.0, 2.0, 3.0], QUIET)]
    assert [step for step, *_ in one[5]] == [3, 4]  # what was under way comes in the end
    assert one[5][0][2] == ChangeRequest(stop=True, values=(1.0,))


def test_the_master_gets_every_block_from_its_owner(samples, tmp_path):
    """Weights and what the optimiser knows; its own stays as it is."""
    cuts, owned = [cutting() for _ in range(2)], {}

    def device(rank):
        told = job(
            cuts[rank], samples, tmp_path, Recorder(), rank=rank, devices=2,
            programme=programme(2, batch=50), recipe={"batch": 50},
        )  # fmt: skip
        loop = BlockwiseLoop(told)
        stages = loop.stages
        for block, pair in enumerate(told.cutting.pairs):  # as if it had been trained
            for tensor in pair.student.parameters():
                tensor.grad = torch.full_like(tensor, 1.0 + rank)
            stages.optimizers[block].step()
        if rank == 1:
            owned.update({b: _copy(stages, told, b) for b in (1, 2)})
        before = _copy(stages, told, 0)
        Gathering(told, stages, loop.talk).collect()
        loop.stages.close()
        return before, [_copy(stages, told, b) for b in range(3)]

    (before, master), _ = in_threads(2, device)
    assert _equal(master[0], before)
    assert _equal(master[1], owned[1])
    assert _equal(master[2], owned[2])
    assert not _equal(master[0], weights(cuts[1]))


def _copy(stages, told, block):
    tensors, _ = Gathering(told, stages, None).packed(block)
    return {k: v.clone() for k, v in tensors.items()}


def _equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_a_device_has_the_optimisers_of_all_blocks_and_the_losses_of_its_own(
    samples, tmp_path
):
    cut = cutting()

    def device(rank):
        loop = BlockwiseLoop(job(cut, samples, tmp_path, Recorder(), rank=0))
        stages: DeviceStages = loop.stages
        stages.begin(1)
        assert stages.sizes == [len(ids) for ids in samples.batches(0)[1:]]
        assert [stages.trains(b) for b in range(3)] == [True] * 3
        assert len(stages.optimizers) == 3
        assert stages.mean_losses() == {}
        stages.close()

    in_threads(1, device)


def test_a_loader_gives_the_views_of_the_plan_and_makes_the_next_ahead(samples):
    cut = cutting()
    loader = Loader(samples, cut.student, CPU)
    mean, std = cut.student.mean, cut.student.std
    for epoch, first in ((0, 0), (1, 2)):
        loader.begin(epoch, first)
        every = samples.batches(epoch)[first:]
        assert [len(ids) for ids in loader.ids] == [len(ids) for ids in every]
        for step, ids in enumerate(every):
            raw = torch.from_numpy(samples.views(ids[5:20], epoch)).float()
            torch.testing.assert_close(loader(step, 5, 20), (raw - mean) / std)
    # An epoch that begins anew does not get what was made ahead for the one before.
    loader.begin(0, 0)
    loader(0, 0, 10)
    loader.begin(2, 0)
    raw = torch.from_numpy(samples.views(samples.batches(2)[1][:10], 2)).float()
    torch.testing.assert_close(loader(1, 0, 10), (raw - mean) / std)
    loader.close()


def block(seconds):
    return Block(
        teacher_s={4: seconds, 8: 2 * seconds},
        student_s={4: seconds, 8: 2 * seconds},
        output_bytes=100,
        gradient_bytes=100,
        fixed_bytes=1000,
        row_bytes=10,
        norms=1,
    )


def test_a_profile_of_several_devices_has_the_middle_of_what_they_took():
    found = in_threads(
        3, lambda rank: gathered([block(1.0 + rank)], CPU, load_s=0.1 * (rank + 1))
    )
    assert found[0].types == found[1].types == found[2].types
    ((name, (middle,)),) = found[0].types.items()
    assert found[0].devices == (name,) * 3
    assert middle.teacher_s == {4: 2.0, 8: 4.0}
    assert found[0].load_s == 0.2
    assert found[0].load_overlap == 0.0  # processors load and compute
    link = found[0].links[name]
    assert link.bytes_per_s > 0
    assert link.meet_s > 0
    assert link.overlap == 0.0


def test_a_device_alone_has_no_link_to_measure():
    (links,) = in_threads(1, lambda rank: measured_links(CPU))
    assert links == {kind_of(CPU): DeviceLink(overlap=0.0)}


@pytest.mark.long
def test_sharing_is_measured_on_copies_where_it_can_be():
    cuts = [cutting() for _ in range(2)]
    before = weights(cuts[0])

    def costs(devices, memory=None):
        return StageCosts(
            Profile(
                types={"any": [block(0.01) for _ in range(3)]},
                devices=("any",) * devices,
                memory_bytes=memory,
            ),
            8,
        )

    views = torch.randn(8, 1, 8, 8)

    def copies(rank):
        return OnCopies(
            rank,
            cuts[rank],
            Recipe(lr=0.1),
            "sync",
            lambda step, start, stop: views[start:stop],
            lambda: alive.append(rank),
        )

    def measured(rank, costs):
        return measured_sharing(costs, copies(rank))

    alive = []
    found = in_threads(2, lambda rank: measured(rank, costs(2)))
    assert found[0] == found[1] > 0
    assert alive.count(0) == alive.count(1) >= 8
    assert all(torch.equal(v, before[k]) for k, v in weights(cuts[0]).items())
    assert measured(0, costs(1)) == 1.0  # nobody to meet
    assert measured(0, costs(2, (1.0, 1.0))) == 1.0  # no room for all blocks on each
    assert measured(0, costs(5)) == 1.0  # fewer rows than two for each
    # A step of any plan, by its slowest device.
    alive.clear()
    for plan in (pipeline(8, [1, 3], [1, 1]), pipeline(8, [3], [2])):
        took = in_threads(2, lambda rank, plan=plan: step_s(plan, copies(rank)))
        assert took[0] == took[1] > 0
    assert alive.count(0) == alive.count(1) == 2 * 8
    assert all(torch.equal(v, before[k]) for k, v in weights(cuts[0]).items())
    took = in_threads(2, lambda rank: step_s(pipeline(8, [3], [1]), copies(rank)))
    assert took[0] == took[1] > 0  # known to the one that is idle, too
    assert (alive.count(0), alive.count(1)) == (3 * 8, 2 * 8)
