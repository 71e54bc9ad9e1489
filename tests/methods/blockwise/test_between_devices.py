"""Messages between devices: losses of some steps before, blocks, and costs of each device."""

import pytest
import torch
from small_pipelines import CPU, cutting, job, programme, same, weights
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

    rank0, rank1 = in_threads(2, device)
    assert rank0 == rank1
    assert rank0[:2] == [[], []]  # too early for any
    assert rank0[2] == [(0, [1.0, 2.0, 3.0], QUIET)]
    assert [step for step, *_ in rank0[5]] == [3, 4]  # the last ones come at the end
    assert rank0[5][0][2] == ChangeRequest(stop=True, values=(1.0,))


def test_the_master_gets_every_block_from_its_owner(samples, tmp_path):
    """With the optimiser's state; the block that the master trains itself stays as it is."""
    cuts, owned = [cutting() for _ in range(2)], {}

    def device(rank):
        device_job = job(
            cuts[rank], samples, tmp_path, Recorder(), rank=rank, devices=2,
            programme=programme(2, batch=50), recipe={"batch": 50},
        )  # fmt: skip
        loop = BlockwiseLoop(device_job)
        stages = loop.stages
        for block, pair in enumerate(device_job.cutting.pairs):  # as if it had been trained
            for tensor in pair.student.parameters():
                tensor.grad = torch.full_like(tensor, 1.0 + rank)
            stages.optimizers[block].step()
        if rank == 1:
            owned.update({b: _copy(stages, device_job, b) for b in (1, 2)})
        before = _copy(stages, device_job, 0)
        Gathering(device_job, stages, loop.talk).collect()
        loop.stages.close()
        return before, [_copy(stages, device_job, b) for b in range(3)]

    (before, master), _ = in_threads(2, device)
    assert same(master[0], before)
    assert same(master[1], owned[1])
    assert same(master[2], owned[2])
    assert not same(master[0], weights(cuts[1]))


def _copy(stages, device_job, block):
    tensors, _ = Gathering(device_job, stages, None).packed(block)
    return {k: v.clone() for k, v in tensors.items()}


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
    # A new epoch does not get the views that were prepared for the one before.
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
    profiles = in_threads(
        3, lambda rank: gathered([block(1.0 + rank)], CPU, load_s=0.1 * (rank + 1))
    )
    assert profiles[0].types == profiles[1].types == profiles[2].types
    ((name, (middle,)),) = profiles[0].types.items()
    assert profiles[0].devices == (name,) * 3
    assert middle.teacher_s == {4: 2.0, 8: 4.0}
    assert profiles[0].load_s == 0.2
    assert profiles[0].load_overlap == 0.0  # processors load and compute
    link = profiles[0].links[name]
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
    factors = in_threads(2, lambda rank: measured(rank, costs(2)))
    assert factors[0] == factors[1] > 0
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
    assert took[0] == took[1] > 0  # the idle device knows it, too
    assert (alive.count(0), alive.count(1)) == (3 * 8, 2 * 8)
