"""Children that are a script where a process of kdlab starts some: who, with what, in order."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

from kdlab.testing.scripted import ScriptedChild


class StartedChild(ScriptedChild):
    """A child that records what it was started with, and the signals that it got."""

    def __init__(self, pid, module, config, log, options):
        super().__init__(pid=pid)
        self.module, self.config, self.log, self.options = module, config, log, options
        self.signals, self.stops = [], 0
        child = self

        class Process(SimpleNamespace):
            @property
            def returncode(self):
                return child.exit_code

            def poll(self):
                return child.exit_code

        self.process = Process(pid=pid, send_signal=self.signals.append)

    def stop(self, timeout_s=5.0):
        self.stops += 1
        if self.alive():
            super().stop(timeout_s)


@dataclass
class Starts:
    """Stands for `Child` where what starts one is handed in; `then` is called with each."""

    children: list = field(default_factory=list)
    then: Callable = lambda child: None

    def __call__(self, module, config, log, *rest, **options):
        if rest:
            options["rest"] = rest
        pid = 1000 + len(self.children)
        self.children.append(StartedChild(pid, module, config, log, options))
        self.then(self.children[-1])
        return self.children[-1]

    @property
    def alive(self):
        return [child for child in self.children if child.alive()]
