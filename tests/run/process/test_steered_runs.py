"""A run that goes on is paused, saved and changed: by a user who is asked after each step."""

import pytest
from runs_here import steps

import kdlab
from kdlab.changes import queue
from kdlab.changes.change import SetValues, append
from kdlab.errors import BadInput
from kdlab.events.log import select
from kdlab.run.handle.run import Run, resume
from kdlab.soft_labels.source import LocalSource
from kdlab.train import loop_control

SMALL = {
    "student": {"type": "models/patch_net", "patch": 8, "width": 8},
    "train.epochs": 30,
    "train.log_every_steps": 1,
    "train.evaluate_every": 1000,
    "train.schedule": "constant",
    "train.lr": 0.1,
}


@pytest.fixture
def user(here, monkeypatch):
    """Installs a script of what somebody does: a generator, gone on with at each look.

    What it yields is whether the run is to end; that is not taken back.
    """
    monkeypatch.setattr(queue, "_EVERY_S", 0.0)
    monkeypatch.setattr(loop_control, "_PAUSED_S", 0.0)

    def does(script):
        going, stops = [], []

        def look(folder):
            if not going:
                going.append(script(Run(folder)))
            if not stops and next(going[0], False):
                stops.append(True)
            return bool(stops)

        here.stop = look

    return does


def events(run, kind):
    return list(select(run.folder.events, kind))


def last(run):
    return max((e.step for e in steps(run.folder)), default=0)


def until(condition):
    """Looks on until this is so, and not for ever: no step comes in a pause."""
    for _ in range(1000):
        if condition():
            return
        yield False
    raise AssertionError("it did not come true")


def started(*overrides, source="none"):
    return kdlab.load(f"smoke/{source}", SMALL, *overrides).start()


def test_paused_it_stands_still_is_saved_and_goes_on(user):
    def script(run):
        yield from until(lambda: last(run))
        run.pause()
        yield from until(lambda: events(run, "paused"))
        step = last(run)
        yield from [False] * 5
        assert last(run) == step == events(run, "paused")[0].step
        run.checkpoint()
        yield from until(lambda: events(run, "checkpoint_saved"))
        assert events(run, "checkpoint_saved")[-1].step == step
        run.set(lr_factor=0.5)
        yield from until(lambda: events(run, "steered"))
        assert events(run, "steered")[0].step == step  # in the pause
        run.go_on()
        yield from until(lambda: last(run) > step)
        assert events(run, "went_on")[0].step == step
        run.pause()
        yield from until(lambda: len(events(run, "paused")) == 2)
        yield True  # a stop, also of a paused one

    user(script)
    run = started()
    assert run.state == "stopped", run.folder.log.read_text()
    rates = [e.lr for e in steps(run.folder)]
    (steered,) = events(run, "steered")
    assert set(rates[: steered.step]) == {0.1}
    assert set(rates[steered.step :]) == {0.05}
    assert len(events(run, "went_on")) == 2  # the stop ends the second
    assert sorted(e.step for e in steps(run.folder)) == list(range(1, last(run) + 1))


@pytest.mark.long
def test_a_pause_changes_nothing_of_what_is_learned(user):
    quiet = started("train.epochs=3")

    def script(run):
        yield from until(lambda: last(run) >= 5)
        run.pause()
        run.checkpoint()
        yield from until(lambda: events(run, "paused"))
        yield from [False] * 3
        run.go_on()

    user(script)
    run = started("train.epochs=3")
    assert run.state == "finished"
    assert [e.loss for e in steps(run.folder)] == [e.loss for e in steps(quiet.folder)]
    assert run.result["samples_repeated"] == run.result["samples_lost"] == 0


def test_numbers_change_from_the_next_step_on(user):
    changes = {"loss.temperature": 2.0, "lr_factor": 0.5}

    def script(run):
        yield from until(lambda: last(run))
        names = {knob.name: knob for knob in run.knobs()}
        assert set(names) == {
            "lr_factor", "loss.hard_weight", "loss.soft_weight", "loss.temperature",
                "loss.warm_up_epochs",
        }  # fmt: skip
        assert names["loss.temperature"].range.gt == 0
        run.set(**changes)
        yield from until(lambda: events(run, "steered"))
        (steered,) = events(run, "steered")
        yield from until(lambda: last(run) > steered.step)
        assert {k.name: k.value for k in run.knobs()}["loss.temperature"] == 2.0
        yield True

    user(script)
    run = started(source="in_process")
    assert run.state == "stopped", run.folder.log.read_text()
    (steered,) = events(run, "steered")
    assert steered.values == changes
    rates = {e.step: e.lr for e in steps(run.folder)}
    assert {lr for step, lr in rates.items() if step <= steered.step} == {0.1}
    assert {lr for step, lr in rates.items() if step > steered.step} == {0.05}


@pytest.mark.parametrize("temperature", [4.0, 1.0])
@pytest.mark.long
def test_the_loss_itself_turns(user, temperature):
    """Setting what holds already changes no step; another value changes the next."""
    quiet = started("train.epochs=1", source="in_process")

    def script(run):
        yield from until(lambda: last(run) >= 3)
        run.set(**{"loss.temperature": temperature})

    user(script)
    run = started("train.epochs=1", source="in_process")
    assert run.state == "finished", run.folder.log.read_text()
    found, expected = ([e.loss for e in steps(r.folder)] for r in (run, quiet))
    assert found[:3] == expected[:3]
    assert (found == expected) == (temperature == 4.0)
    assert len(events(run, "steered")) == (0 if temperature == 4.0 else 1)


def test_what_was_set_still_holds_after_a_resume_and_a_pause_does_not(user, here):
    def script(run):
        yield from until(lambda: last(run))
        run.set(lr_factor=0.25)
        run.pause()
        yield from until(lambda: events(run, "steered") and events(run, "paused"))
        yield True

    user(script)
    run = started()
    assert run.state == "stopped", run.folder.log.read_text()
    count = len(steps(run.folder))
    here.stop = lambda folder: len(steps(folder)) > count + 3
    resume(run.id)
    assert run.state == "stopped", run.folder.log.read_text()
    assert {e.lr for e in steps(run.folder)[count:]} == {0.025}  # from its first step
    assert len(events(run, "paused")) == 1


@pytest.fixture
def steerable(monkeypatch):
    """Labels from this process, from a source that takes thresholds as a reader does."""
    told = []

    def set_thresholds(self, **values):
        if values["ut"] > 1000:
            raise BadInput("ut is more than memory has.")
        told.append(values)

    for name, does in {
        "set_thresholds": set_thresholds,
        "pause": lambda self, *, paused: told.append(paused),
        "look": lambda self: None,
    }.items():
        monkeypatch.setattr(LocalSource, name, does, raising=False)
    return told


def test_thresholds_go_to_the_source_once_and_a_refusal_is_said(user, steerable):
    def ask(run, **values):
        named = {f"soft_labels.{name}": value for name, value in values.items()}
        append(run.path, SetValues(time=1.0, member="in_process/seed0", set=named))

    def script(run):
        yield from until(lambda: last(run))
        ask(run, lt=32.0, ut=700.0)
        yield from until(lambda: events(run, "steered"))
        ask(run, ut=5000.0)
        yield from until(lambda: events(run, "warned"))
        run.pause()
        yield from until(lambda: events(run, "paused"))
        ask(run, lt=16.0, ut=600.0)
        yield from until(lambda: len(events(run, "steered")) == 2)  # in the pause
        run.go_on()
        yield from until(lambda: events(run, "went_on"))
        yield True

    user(script)
    run = started(source="in_process")
    assert run.state == "stopped", run.folder.log.read_text()
    assert steerable == [
        {"lt": 32.0, "ut": 700.0}, True, {"lt": 16.0, "ut": 600.0}, False
    ]  # fmt: skip
    first, second = events(run, "steered")
    assert first.values == {"soft_labels.lt": 32.0, "soft_labels.ut": 700.0}
    assert second.values == {"soft_labels.lt": 16.0, "soft_labels.ut": 600.0}
    (warned,) = events(run, "warned")
    assert warned.message == "The thresholds stay as they are. ut is more than memory has."
