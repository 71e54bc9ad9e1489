"""Runs that a test writes by hand: their folder, what happens in it next, and results."""

from tests_support import event, hold

import kdlab
from kdlab.changes.change import CONTROL, ChangeReader
from kdlab.codec import to_builtins
from kdlab.config.home import write_json
from kdlab.events.log import EventLog
from kdlab.run.handle.run import Run, create_folder
from kdlab.train.evaluate import Accuracy
from kdlab.train.result import MemberResult


def result_of(member, **facts):
    """A made-up result of a training; accuracies are 60 % where none are given."""
    source, _, seed = member.partition("/seed")
    usual = dict(
        member=member, source=source, seed=int(seed), parameters=1000,
        last=Accuracy(60.0, 90.0, 100), best=Accuracy(60.0, 90.0, 100),
        validation_last=61.0, validation_best=62.0, best_epoch=2, epochs=2, steps=16,
        samples_per_second=100.0, train_seconds=5.0, wall_seconds=6.0, seen=480, lost=0,
        repeated=0, rolled_back=0, figures={}, teacher_top1=None,
        model_path="student.safetensors", best_path="best.safetensors",
    )  # fmt: skip
    return MemberResult(**usual | facts)


class WrittenRun:
    """A run of a config, as if this process carried it out; others see its `handle`.

    A signal to its process reaches the test.
    """

    def __init__(self, config="smoke/none", *overrides, path=None, tunables=()):
        self.folder, _ = create_folder(kdlab.load(config, *overrides), "running", path)
        self.let_go = hold(self.folder)
        self.log = EventLog(self.folder.events)
        self.handle = Run(self.folder)
        self.member, self.steps = "none/seed0", 0
        write_json(self.folder.tunables, {self.member: to_builtins(list(tunables))})

    def say(self, kind, **facts):
        """Write an event, of its member where none is named."""
        self.log.emit(event(kind, **{"member": self.member} | facts))

    def begin(self, member=None):
        """Let a member train from now on."""
        self.member = member or self.member
        source, _, seed = self.member.partition("/seed")
        self.say("run_started", member=None, experiment="smoke/none", members=[self.member])
        self.say("member_started", source=source, seed=int(seed))
        return self

    def train(self, steps, of_steps=100):
        """Write so many steps."""
        for _ in range(steps):
            self.steps += 1
            self.say(
                "step_logged", step=self.steps, of_steps=of_steps, loss=1.0 / self.steps,
                samples_per_second=500.0, epoch=self.steps // 10,
            )  # fmt: skip
        return self

    def end(self, state="finished", error=None):
        """End the run, with the files that its process leaves."""
        self.say("run_done", member=None, state=state, error=error)
        result = {"runs": []} if state == "finished" else None
        self.folder.write_status(state=state, error=error, result=result)
        return self

    def changes(self):
        """Changes that were requested so far."""
        return ChangeReader(self.folder.path / CONTROL)()
