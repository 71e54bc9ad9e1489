"""Stand-ins for runs, as commands use them: they record calls and answer as told."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace


class Asked:
    """Records any call of a method, and returns the answer that it was given for it."""

    def __init__(self, **answers):
        self.answers, self.calls = answers, []

    def __getattr__(self, name):
        def call(*arguments, **options):
            self.calls.append((name, *arguments, *([options] if options else ())))
            answer = self.answers.get(name)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call


class ARun(Asked):
    """A stand-in for a run (`kdlab.run.handle.run.Run`), as commands use it."""

    id, name, path = "r1", "r1", Path("runs/r1")
    state = "stopped"

    def __init__(self, result=None, tracking="", **answers):
        super().__init__(**answers)
        self._result = result
        self.status = SimpleNamespace(tracking=tracking, result=result)

    @property
    def result(self):
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result

    @contextmanager
    def lines(self):
        yield "see"

    def __str__(self):
        return "r1 stopped"


class Shown(SimpleNamespace):
    """Something with a text and a form as JSON."""

    def __repr__(self):
        return self.text

    def to_json(self):
        return {"text": self.text}


def recorded_calls(monkeypatch, place, answer=None):
    """Replace a function of a module by one with this answer; return its calls."""
    calls = []

    def function(*arguments, **options):
        calls.append((*arguments, *([options] if options else ())))
        return answer

    monkeypatch.setattr(place, function)
    return calls
