"""Runs that a test writes by hand: their folder, and what happens in it next."""

from tests_support import event, hold

import kdlab
from kdlab.changes.change import CONTROL, ChangeReader
from kdlab.codec import to_builtins
from kdlab.config.home import write_json
from kdlab.events.log import EventLog
from kdlab.run.handle.run import Run, create_folder


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
