"""Students on a GPU: every precision, compiled, resumed to the bit, in whole runs."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import kdlab
from kdlab.errors import RunStopped
from kdlab.events.training import StepLogged
from kdlab.losses.hinton import Hinton
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.model import ModelSpec
from kdlab.soft_labels.scripted import Scripted
from kdlab.soft_labels.source import SourceContext
from kdlab.train.recipe import Recipe
from kdlab.train.student import StudentLoop
from kdlab.train.student_job import StudentJob

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SPEC = CifarResNet(depth=8, width=(16, 16, 32, 32))


@dataclass(frozen=True, kw_only=True)
class Dropping(ModelSpec):
    """Draws from the GPU's random state in every step."""

    def architecture(self, num_classes, in_chans):
        return nn.Sequential(
            nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10)
        )


class Stopper:
    def __init__(self, after=None):
        self.after, self.losses = after, {}

    def emit(self, event):
        if isinstance(event, StepLogged):
            self.losses[event.step] = event.loss

    def stop(self):
        return self.after is not None and len(self.losses) >= self.after


def make(samples, folder, stopper=None, spec=SPEC, **recipe):
    options = {"epochs": 3, "batch": 50, "lr": 0.05, "log_every_steps": 1, "device": "cuda"}
    stopper = stopper or Stopper()
    torch.manual_seed(7)
    model = spec.build(10, 1)
    model.eval()(torch.from_numpy(samples.views(samples.batches(0)[0][:1], 0)))  # lazy ones
    job = StudentJob(
        recipe=Recipe(**options | recipe),
        model_spec=spec,
        model=model,
        samples=samples,
        loss=Hinton(),
        seed=7,
        folder=folder,
        spec_hash="h",
        emit=stopper.emit,
        stop=stopper.stop,
    )
    return StudentLoop(job), stopper


def source(samples, folder):
    return Scripted().build(SourceContext(samples=samples, student="s", folder=folder))


@pytest.mark.parametrize(
    "words",
    [
        {"precision": "fp32"},
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"precision": "bf16", "channels_last": True},
        {"precision": "fp32", "compile": True},
        {"precision": "bf16", "channels_last": True, "compile": True},
    ],
    ids=lambda words: "-".join(map(str, words.values())),
)
def test_a_student_learns_what_it_learns_on_a_cpu(samples, tmp_path, words):
    precision = words["precision"]
    on_gpu, recorded = make(samples, tmp_path / "gpu", **words)
    result = on_gpu.run(source(samples, tmp_path))
    on_cpu, wanted = make(samples, tmp_path / "cpu", device="cpu")
    on_cpu.run(source(samples, tmp_path))
    assert (result.seen, result.lost, result.repeated) == (720, 0, 0)
    assert result.last.top1 > 0.3
    steps = sorted(recorded.losses)
    near = (
        1e-2 if precision == "fp32" else 5e-2
    )  # TF32 convolutions, of PyTorch's own choice
    for step in steps[:3]:
        assert recorded.losses[step] == pytest.approx(wanted.losses[step], rel=near), step
    assert recorded.losses[steps[-1]] < recorded.losses[steps[0]]
    assert next(on_gpu.model.parameters()).dtype == torch.float32


@pytest.mark.parametrize("spec", [SPEC, Dropping()], ids=["resnet", "dropout"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_resume_goes_on_to_the_bit(samples, tmp_path, exactly, precision, spec):
    """With the GPU's random state, and the scale of fp16."""
    uncut, recorded = make(samples, tmp_path / "whole", spec=spec, precision=precision)
    uncut.run(source(samples, tmp_path))
    cut = {"spec": spec, "precision": precision}
    loop, first = make(samples, tmp_path / "cut", Stopper(after=8), **cut)
    with pytest.raises(RunStopped):
        loop.run(source(samples, tmp_path))
    torch.cuda.manual_seed(99)  # whatever this process does meanwhile
    again, second = make(samples, tmp_path / "cut", **cut)
    assert again.resume()
    again.run(source(samples, tmp_path))
    assert first.losses | second.losses == recorded.losses
    ends = uncut.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])
    assert uncut.train_step.scaler.state_dict() == again.train_step.scaler.state_dict()


@pytest.mark.processes
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_served_student_loses_nothing(kdlab_home, elsewhere, precision):
    run = kdlab.load(
        "smoke/served",
        f"train.precision={precision}",
        "train.device=cuda",
        "teacher_pool.device=cuda",
        "tracking.enabled=false",
    )
    result = run.start(lambda line: None).wait(timeout_s=600).result
    assert result["samples_lost"] == result["samples_repeated"] == 0
    assert "not pinned" not in "".join(p.read_text() for p in elsewhere.rglob("*.log"))
