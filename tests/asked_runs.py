"""Stand-ins for what commands ask of runs: they remember each call, and answer as they are told."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace


class Asked:
    """Takes any call of a method, and remembers it; answers with what it was given."""

    def __init__(self, **answers):
        self.answers, self.calls = answers, []

    def __getattr__(self, name):
        def call(*arguments, **options):
            self.calls.append((name, *arguments, *([options] if options else ())))
            found = self.answers.get(name)
            if isinstance(found, BaseException):
                raise found
            return found

        return call


class ARun(Asked):
    """What commands ask of a run (`kdlab.run.handle.run.Run`)."""

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


def told(monkeypatch, place, answer=None):
    """Puts a function into a module that answers so; its calls."""
    calls = []

    def function(*arguments, **options):
        calls.append((*arguments, *([options] if options else ())))
        return answer

    monkeypatch.setattr(place, function)
    return calls
