"""The loop of one device: it saves, stops, pauses, goes on, reports, and ends like another plan."""

import pytest
import torch
from small_pipelines import cutting, job, same, weights
from student_loops import Recorder
from threaded_ranks import in_threads

from kdlab.changes.change import LR_FACTOR
from kdlab.changes.queue import ChangeQueue
from kdlab.data.samples import planned
from kdlab.errors import Diverged, RunStopped
from kdlab.methods.blockwise.job import BlockwiseFacts
from kdlab.methods.blockwise.loop import BlockwiseLoop
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan
from kdlab.papers.pipe_bd.stages import Plan, Stage
from kdlab.train import checkpoint
from kdlab.train.aggregation.ranks import GenerationEnds

STEPS = 30  # two epochs of 240 images, 16 at a time


@pytest.fixture
def samples(digits):
    data, spec = digits
    return planned(data, spec.to_dict(), batch=16, seed=3, epochs=2)


def newest(folder):
    return checkpoint.load_newest(folder / "checkpoints", "h", BlockwiseFacts)


def trained(samples, folder, devices=1, recorders=None, begun=None, **more):
    """Train to the end on so many devices and return (the master's weights, its result)."""
    recorders = recorders or [Recorder() for _ in range(devices)]
    cuts = [cutting() for _ in range(devices)]
    saved = newest(folder) if folder.exists() else None

    def device(rank):
        loop = BlockwiseLoop(
            job(cuts[rank], samples, folder, recorders[rank],
                rank=rank, devices=devices, **more)
        )  # fmt: skip
        loop.restore(saved)
        if begun is not None:
            begun.append(loop)
        loop.train()
        return None if rank else loop.finish()

    (result, *_) = in_threads(devices, device)
    return weights(cuts[0]), result


@pytest.fixture
def quiet(samples, tmp_path):
    """Weights of an undisturbed training on one device."""
    return trained(samples, tmp_path / "quiet")[0]


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.long
def test_a_pipeline_trains_what_one_device_does_to_the_last_bit(
    samples, tmp_path, quiet, devices
):
    recorders = [Recorder() for _ in range(devices)]
    state, result = trained(samples, tmp_path / "several", devices, recorders)
    assert same(state, quiet)
    assert (result.lost, result.repeated, result.seen) == (0, 0, 2 * 240)
    assert recorders[1].events == recorders[-1].events == []  # the master speaks for all
    done = [e for e in recorders[0].events if e.KIND == "epoch_done"]
    assert [(e.epoch, e.step) for e in done] == [(1, STEPS // 2), (2, STEPS)]
    steps = [e for e in recorders[0].events if e.KIND == "step_logged"]
    assert all(len(e.block_losses) == 3 for e in steps)
    first, last = steps[0].block_losses, steps[-1].block_losses
    assert sum(last[:2]) < sum(first[:2])  # blocks learn their teacher's


@pytest.mark.parametrize(
    ("used", "decoupled"), [((0,), True), ((1,), False), ((1, 2), False), ((2, 0), True)]
)
@pytest.mark.long
def test_devices_that_are_left_idle_change_nothing(
    samples, tmp_path, quiet, used, decoupled
):
    """Three ranks, of which one or two train; the first is the master all the same."""
    cuts = [0, 3] if len(used) == 1 else [0, 1, 3]
    stages = [
        Stage(first, stop, (device,), (16,), from_data=first == 0)
        for first, stop, device in zip(cuts, cuts[1:], used, strict=False)
    ]
    plan = Plan(16, tuple(stages), decoupled, lead=1)
    recorders = [Recorder() for _ in range(3)]
    state, result = trained(
        samples, tmp_path / "some", 3, recorders,
        programme=ExecutionPlan("ahd", (plan,), 0.01, "as told"),
    )  # fmt: skip
    assert same(state, quiet)
    assert (result.lost, result.repeated, result.seen) == (0, 0, 2 * 240)
    steps = [e for e in recorders[0].events if e.KIND == "step_logged"]
    assert steps
    assert all(len(e.block_losses) == 3 and e.lr > 0 for e in steps)


@pytest.mark.long
def test_what_is_saved_names_every_block_and_the_plan(samples, tmp_path):
    trained(samples, tmp_path / "m", 2)
    saved = newest(tmp_path / "m")
    assert saved.facts.position.step == STEPS
    assert saved.facts.programme["name"] == "tr"
    assert len(saved.facts.blocks) == 3
    for block in range(3):
        assert any(k.startswith(f"block.{block}.") for k in saved.tensors)
    assert not any("random." in k for k in saved.tensors)
    assert saved.tensors["lineage.counts"].sum() == 0  # closed accounts


@pytest.mark.long
def test_stopped_at_a_step_it_goes_on_there(samples, tmp_path):
    quiet, _ = trained(samples, tmp_path / "q", 2)
    recorders, folder = [Recorder(stop_after=1), Recorder()], tmp_path / "stopped"
    with pytest.raises(RunStopped, match="stopped by the user after step"):
        trained(samples, folder, 2, recorders)
    saved = newest(folder).facts.position
    assert saved.epoch == 0
    assert 0 < len(saved.done) < 15
    again = [Recorder(), Recorder()]
    state, result = trained(samples, folder, 2, again)
    assert same(state, quiet)
    assert (result.lost, result.repeated) == (0, 0)
    (resumed,) = (e for e in again[0].events if e.KIND == "resumed")
    assert (resumed.step, resumed.rolled_back) == (saved.step, 0)


def test_it_saves_every_so_many_steps_and_trains_the_same(samples, tmp_path, quiet):
    recorders = [Recorder(), Recorder()]
    every = {"checkpoint_every_steps": 6}
    state, _ = trained(samples, tmp_path / "saves", 2, recorders, recipe=every)
    assert same(state, quiet)
    saved = [e.step for e in recorders[0].events if e.KIND == "checkpoint_saved"]
    assert len(saved) >= 3  # beside those between epochs
    assert saved == sorted(set(saved))


@pytest.mark.long
def test_who_leaves_has_all_save_and_end_this_generation(samples, tmp_path, quiet):
    """Both ranks count steps into one list; the first that asks to leave makes all save."""
    steps, folder = [], tmp_path / "left"
    with pytest.raises(GenerationEnds):
        trained(
            samples, folder, 2, leave=lambda: len(steps) >= 10, pulse=steps.append
        )  # both count into it
    assert 2 <= newest(folder).facts.position.step < STEPS
    state, _ = trained(samples, folder, 2)
    assert same(state, quiet)


class Asked(ChangeQueue):
    """A queue with a user's changes at one poll, and a pause for the two polls after it."""

    def __init__(self, looks, values=None, save=False):
        super().__init__(None, "")
        self.left, self.requested, self.save = looks, values or {}, save

    def poll(self, *, now=False):
        if not now:
            self.left -= 1
            self.paused = -2 <= self.left < 0
        if self.left == 0:
            self.values, self.wants_checkpoint = dict(self.requested), self.save
        return self


@pytest.mark.long
def test_a_pause_changes_nothing_and_is_told(samples, tmp_path, quiet):
    recorders = [Recorder(), Recorder()]
    state, _ = trained(samples, tmp_path / "paused", 2, recorders, changes=Asked(4))
    assert same(state, quiet)
    kinds = [e.KIND for e in recorders[0].events]
    assert kinds.index("paused") < kinds.index("continued")
    assert kinds.count("paused") == kinds.count("continued") == 1
    assert not recorders[1].events


@pytest.mark.long
def test_a_rate_that_is_changed_holds_on_all_devices(samples, tmp_path, quiet):
    recorders, loops = [Recorder(), Recorder()], []
    changes = Asked(2, {LR_FACTOR: 0.5})
    state, _ = trained(samples, tmp_path / "slow", 2, recorders, loops, changes=changes)
    assert not same(state, quiet)
    (event,) = (e for e in recorders[0].events if e.KIND == "settings_changed")
    assert event.values == {LR_FACTOR: 0.5}
    assert all(loop.control.lr_factor == 0.5 for loop in loops)


@pytest.mark.long
def test_a_checkpoint_that_is_asked_for_is_written_in_the_epoch(samples, tmp_path):
    recorder = Recorder()
    trained(samples, tmp_path / "m", 1, [recorder], changes=Asked(2, save=True))
    saved = [e.step for e in recorder.events if e.KIND == "checkpoint_saved"]
    assert saved[1:] == [STEPS // 2, STEPS]
    assert 0 < saved[0] < STEPS // 2


def test_a_loss_that_is_no_number_ends_it(samples, tmp_path):
    with pytest.raises(Diverged, match="loss"):
        trained(samples, tmp_path / "m", 2, recipe={"lr": 1e30})


@pytest.mark.long
def test_the_last_steps_of_each_epoch_are_traced(samples, tmp_path):
    traces = []
    trained(samples, tmp_path / "m", 2, on_trace=traces.append)
    assert len(traces) == 2
    for spans in traces:
        assert {s.device for s in spans} == {0, 1}
        assert {"load", "teacher", "student", "backward", "send", "receive", "update"} <= {
            s.part for s in spans
        }
        assert torch.tensor([s.end - s.begin for s in spans]).min() >= 0
