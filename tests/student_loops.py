"""Student loops on real digits, with what they say recorded."""

import json

import torch

from kdlab.events.log import parse
from kdlab.losses.hinton import Hinton
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.soft_labels.scripted import Scripted
from kdlab.soft_labels.source import SourceContext
from kdlab.train.recipe import Recipe
from kdlab.train.student import StudentLoop
from kdlab.train.student_job import StudentJob

SPEC = CifarResNet(depth=8, width=(4, 4, 8, 8))


class Recorder:
    """Collects events; asks to stop after a given number of steps."""

    def __init__(self, stop_after=None):
        self.events, self.stop_after = [], stop_after

    def emit(self, event):
        self.events.append(parse(json.loads(json.dumps(event.facts(), default=float))))

    def stop(self):
        steps = [e for e in self.events if e.KIND == "step_logged"]
        return self.stop_after is not None and len(steps) >= self.stop_after

    def losses(self):
        return {e.step: e.loss for e in self.events if e.KIND == "step_logged"}


def make(samples, folder, recorder=None, loss=Hinton(), **recipe):  # noqa: B008
    options = {"epochs": 3, "batch": 50, "lr": 0.05, "log_every_steps": 1, "device": "cpu"}
    recorder = recorder or Recorder()
    torch.manual_seed(7)
    job = StudentJob(
        recipe=Recipe(**options | recipe),
        model_spec=SPEC,
        model=SPEC.build(10, 1),
        samples=samples,
        loss=loss,
        seed=7,
        folder=folder,
        spec_hash="h",
        emit=recorder.emit,
        stop=recorder.stop,
    )
    return StudentLoop(job), recorder


def source(samples, folder, spec=Scripted()):  # noqa: B008
    return spec.build(SourceContext(samples=samples, student="s", folder=folder))
