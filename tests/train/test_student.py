"""The student loop, with real models on real digits."""

import math
import threading
from dataclasses import replace

import pytest
import torch
from student_loops import SPEC, Recorder, make, source
from torch.nn.functional import cross_entropy

from kdlab.errors import KdlabError, RunStopped, TeacherRefused
from kdlab.losses.hard import Hard
from kdlab.losses.hinton import Hinton, hinton_kd
from kdlab.soft_labels.none import NoTeacher
from kdlab.train.aggregation.ranks import Ranks
from kdlab.train.student import StudentLoop


@pytest.mark.parametrize(
    ("warm_up", "epoch", "weight"), [(0, 0, 0.7), (4, 0, 0.175), (4, 2, 0.525), (2, 2, 0.7)]
)
def test_line_5_is_the_papers_update(samples, tmp_path, warm_up, epoch, weight):
    """One step equals θ - η ∇{α φ + β ψ} written out by hand; β grows in its warm-up."""
    words = {"hard_weight": 0.3, "soft_weight": 0.7, "warm_up_epochs": warm_up}
    loop, _ = make(
        samples, tmp_path, loss=Hinton(temperature=2.0, **words),
        momentum=0.0, weight_decay=0.0, schedule="constant",
    )  # fmt: skip
    torch.manual_seed(7)
    twin = SPEC.build(10, 1)
    twin.load_state_dict(loop.model.state_dict())
    batch = next(iter(source(samples, tmp_path).epoch(0, ())))
    loop.model.train()
    loop.position.epoch = epoch
    loop._step(batch, len(batch.ids))
    twin.train()
    scores = twin(batch.views)
    loss = 0.3 * cross_entropy(scores, batch.labels) + weight * hinton_kd(
        scores, batch.soft, 2.0
    )
    loss.backward()
    for parameter, moved in zip(twin.parameters(), loop.model.parameters(), strict=True):
        assert torch.allclose(parameter - 0.05 * parameter.grad, moved, atol=1e-6)


def test_answers_that_are_no_numbers_are_refused_by_name(samples, tmp_path):
    """argmax picks a NaN: hard labels would take its class."""
    loop, _ = make(samples, tmp_path, loss=Hard())
    batch = next(iter(source(samples, tmp_path).epoch(0, ())))
    batch.soft[3] = float("nan")
    with pytest.raises(TeacherRefused, match=rf"of 1 of 50 images .*\[{batch.ids[3]}\]"):
        loop._step(batch, len(batch.ids))


def test_answers_whose_sum_alone_is_none_are_not_refused(samples, tmp_path):
    batch = next(iter(source(samples, tmp_path).epoch(0, ())))
    batch.soft[3, 0], batch.soft[4, 1] = float("inf"), float("-inf")
    batch.refuse_nonsense()
    batch.soft[5, 2] = float("nan")
    with pytest.raises(TeacherRefused, match=rf"of 1 of 50 images .*\[{batch.ids[5]}\]"):
        batch.refuse_nonsense()


def test_learns_and_accounts_for_every_sample(samples, tmp_path):
    loop, recorder = make(samples, tmp_path, epochs=3)
    result = loop.run(source(samples, tmp_path))
    assert (result.seen, result.lost, result.repeated) == (3 * 240, 0, 0)
    losses = list(recorder.losses().values())
    assert losses[-1] < losses[0]
    assert result.steps == 3 * 5
    assert [e.epoch for e in recorder.events if e.KIND == "epoch_done"] == [1, 2, 3]
    assert (tmp_path / "student.safetensors").is_file()
    assert (tmp_path / "best.safetensors").is_file()


@pytest.mark.parametrize("stop_after", [3, 5, 8])
@pytest.mark.long
def test_a_resumed_training_equals_an_uninterrupted_one(samples, tmp_path, stop_after):
    """Same losses to the last bit, dropout-free model, stopped inside and between epochs."""
    full, record = make(samples, tmp_path / "whole")
    expected = full.run(source(samples, tmp_path))
    loop, first = make(samples, tmp_path / "cut", Recorder(stop_after=stop_after))
    with pytest.raises(RunStopped):
        loop.run(source(samples, tmp_path))
    again, second = make(samples, tmp_path / "cut")
    assert again.resume()
    result = again.run(source(samples, tmp_path))
    assert first.losses() | second.losses() == record.losses()
    assert (result.seen, result.lost, result.repeated, result.rolled_back) == (720, 0, 0, 0)
    for a, b in zip(
        full.model.state_dict().values(), again.model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b)
    assert result.last == expected.last
    assert result.validation_best == expected.validation_best


@pytest.mark.parametrize("file", ["state.safetensors", "state.json", "meta.json"])
@pytest.mark.long
def test_from_a_damaged_checkpoint_it_goes_on_exactly_from_the_one_before(
    samples, tmp_path, file
):
    uninterrupted, record = make(samples, tmp_path / "whole")
    uninterrupted.run(source(samples, tmp_path))
    often = {"checkpoint_every_steps": 6}
    loop, first = make(samples, tmp_path / "cut", Recorder(stop_after=8), **often)
    with pytest.raises(RunStopped):
        loop.run(source(samples, tmp_path))
    newest = max((tmp_path / "cut" / "checkpoints").glob("step_*")) / file
    raw = bytearray(newest.read_bytes())
    raw[len(raw) // 2] ^= 1
    newest.write_bytes(raw)
    again, second = make(samples, tmp_path / "cut", **often)
    assert again.resume()
    result = again.run(source(samples, tmp_path))
    (warned,) = [e for e in second.events if e.KIND == "warned"]
    assert "is damaged" in warned.message
    assert "number 6: what was trained up to 9 is" in warned.message
    assert min(second.losses()) == 7
    assert first.losses() | second.losses() == record.losses()
    assert (result.seen, result.lost, result.repeated) == (720, 0, 0)
    assert result.rolled_back == 3 * 50


def test_what_a_crash_undid_is_counted_apart(samples, tmp_path):
    """The process dies after step 7; the last checkpoint is of step 4."""

    class Crash(Exception):
        pass

    class CrashingSource:
        def __init__(self, inner):
            self.inner, self.sent = inner, 0

        def epoch(self, epoch, done):
            for batch in self.inner.epoch(epoch, done):
                if self.sent == 7:
                    raise Crash
                self.sent += 1
                yield batch

        def figures(self):
            return {}

    loop, first = make(samples, tmp_path, checkpoint_every_steps=4)
    with pytest.raises(Crash):
        loop.run(CrashingSource(source(samples, tmp_path)))
    again, second = make(samples, tmp_path, checkpoint_every_steps=4)
    assert again.resume()
    result = again.run(source(samples, tmp_path))
    assert result.rolled_back == 40 + 2 * 50  # batches 5 to 7; the fifth holds 40
    assert (result.seen, result.lost, result.repeated) == (720, 0, 0)
    for step in (5, 6, 7):  # undone steps are repeated exactly
        assert first.losses()[step] == second.losses()[step]


def test_measuring_the_rate_leaves_no_trace(samples, tmp_path):
    loop, _ = make(samples, tmp_path)
    before = {k: v.clone() for k, v in loop.model.state_dict().items()}
    random = torch.get_rng_state()
    assert loop.measure_rate(seconds=0.05) > 0
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in loop.model.state_dict().items())
    assert loop.train_step.optimizer.state == {}


def test_a_loss_that_blows_up_ends_with_advice(samples, tmp_path):
    loop, _ = make(samples, tmp_path, lr=1e30, schedule="constant")
    with pytest.raises(KdlabError, match=r"lower train\.lr"):
        loop.run(source(samples, tmp_path))


@pytest.mark.parametrize(
    "recipe",
    [
        {"precision": "bf16"},
        {"optimizer": "adamw", "lr": 1e-3},
        {"channels_last": True, "clip_grad_norm": 1.0, "label_smoothing": 0.1},
        {"nesterov": True, "schedule": "step", "drop_lr_at": (1,)},
    ],
    ids=str,
)
@pytest.mark.long
def test_options_train(samples, tmp_path, recipe):
    loop, recorder = make(samples, tmp_path, epochs=2, **recipe)
    result = loop.run(source(samples, tmp_path))
    assert all(math.isfinite(v) for v in recorder.losses().values())
    assert result.seen == 480
    notes = [e.message for e in recorder.events if e.KIND == "note"]
    assert any("channels_last" in n for n in notes) == ("channels_last" in recipe)


def test_best_on_validation_and_last_are_reported_apart(samples, tmp_path):
    loop, recorder = make(samples, tmp_path, epochs=3)
    result = loop.run(source(samples, tmp_path))
    seen = [e.validation_top1 for e in recorder.events if e.KIND == "epoch_done"]
    assert result.validation_best == max(seen)
    assert result.validation_last == seen[-1]
    assert result.best_epoch == seen.index(max(seen)) + 1


def test_a_source_that_loses_a_batch_is_found_out(samples, tmp_path):
    class Loses:
        def epoch(self, epoch, done):
            yield from list(source(samples, tmp_path, NoTeacher()).epoch(epoch, done))[:-1]

        def figures(self):
            return {}

    loop, _ = make(samples, tmp_path)
    with pytest.raises(KdlabError, match="got 4 of 5 batches"):
        loop.run(Loses())


def beating():
    """Return whether a thread of this process gives signs of life."""
    return any(thread.name == "alive" for thread in threading.enumerate())


def test_who_waits_for_another_rank_in_a_save_does_not_look_alive(
    samples, tmp_path, monkeypatch
):
    """A rank that was stopped there was not found for an hour: the others beat on."""
    seen = {"gather": [], "write": []}

    class Waiting(Ranks):
        def gather(self, state):
            seen["gather"].append(beating())
            return super().gather(state)

    loop, _ = make(samples, tmp_path, epochs=1, checkpoint_every_steps=2)
    loop = StudentLoop(replace(loop.job, ranks=Waiting()))
    write = loop._write_checkpoint

    def written(*arguments, **facts):
        seen["write"].append(beating())
        return write(*arguments, **facts)

    monkeypatch.setattr(loop, "_write_checkpoint", written)
    loop.run(source(samples, tmp_path))
    assert not any(seen["gather"])
    assert all(seen["write"])
    assert len(seen["gather"]) == len(seen["write"]) >= 2
