"""A running run is paused, saved and changed by a script that acts after each step."""

import time

import pytest
from runs_here import Killed, losses, steps

import kdlab
from kdlab.changes import queue
from kdlab.changes.change import Back, SetValues, append
from kdlab.errors import BadInput, Diverged
from kdlab.events.log import EventLog, read_all, select
from kdlab.events.training import SettingsReverted
from kdlab.run.handle.run import Run, resume
from kdlab.soft_labels.source import LocalSource
from kdlab.train import kept, loop_control

SMALL = {
    "student": {"type": "models/patch_net", "patch": 8, "width": 8},
    "train.epochs": 30,
    "train.log_every_steps": 1,
    "train.evaluate_every": 1000,
    "train.schedule": "constant",
    "train.lr": 0.1,
}


@pytest.fixture
def user(runs, monkeypatch):
    """Install a script of a user's acts: a generator, continued at each look of the run.

    It yields whether the run is to stop; once it has yielded True, the run stops.
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

        runs.stop = look

    return does


def events(run, kind):
    return list(select(run.folder.events, kind))


def last(run):
    return max((e.step for e in steps(run.folder)), default=0)


def until(condition):
    """Yield False until the condition holds, at most 1000 times."""
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
        yield from until(lambda: events(run, "settings_changed"))
        assert events(run, "settings_changed")[0].step == step  # in the pause
        run.go_on()
        yield from until(lambda: last(run) > step)
        assert events(run, "continued")[0].step == step
        run.pause()
        yield from until(lambda: len(events(run, "paused")) == 2)
        yield True  # a stop, also of a paused one

    user(script)
    run = started()
    assert run.state == "stopped", run.folder.log.read_text()
    rates = [e.lr for e in steps(run.folder)]
    (settings_changed,) = events(run, "settings_changed")
    assert set(rates[: settings_changed.step]) == {0.1}
    assert set(rates[settings_changed.step :]) == {0.05}
    assert len(events(run, "continued")) == 2  # the stop ends the second
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
        names = {knob.name: knob for knob in run.tunables()}
        assert set(names) == {
            "lr_factor", "loss.hard_weight", "loss.soft_weight", "loss.temperature",
                "loss.warm_up_epochs",
        }  # fmt: skip
        assert names["loss.temperature"].range.gt == 0
        run.set(**changes)
        yield from until(lambda: events(run, "settings_changed"))
        (settings_changed,) = events(run, "settings_changed")
        yield from until(lambda: last(run) > settings_changed.step)
        assert {k.name: k.value for k in run.tunables()}["loss.temperature"] == 2.0
        yield True

    user(script)
    run = started(source="in_process")
    assert run.state == "stopped", run.folder.log.read_text()
    (settings_changed,) = events(run, "settings_changed")
    assert settings_changed.values == changes
    rates = {e.step: e.lr for e in steps(run.folder)}
    assert {lr for step, lr in rates.items() if step <= settings_changed.step} == {0.1}
    assert {lr for step, lr in rates.items() if step > settings_changed.step} == {0.05}


@pytest.mark.parametrize("temperature", [4.0, 1.0])
@pytest.mark.long
def test_the_loss_itself_turns(user, temperature):
    """Setting the present value changes no step; another value changes the next one."""
    quiet = started("train.epochs=1", source="in_process")

    def script(run):
        yield from until(lambda: last(run) >= 3)
        run.set(**{"loss.temperature": temperature})

    user(script)
    run = started("train.epochs=1", source="in_process")
    assert run.state == "finished", run.folder.log.read_text()
    actual, expected = ([e.loss for e in steps(r.folder)] for r in (run, quiet))
    assert actual[:3] == expected[:3]
    assert (actual == expected) == (temperature == 4.0)
    assert len(events(run, "settings_changed")) == (0 if temperature == 4.0 else 1)


def test_what_was_set_still_holds_after_a_resume_and_a_pause_does_not(user, runs):
    def script(run):
        yield from until(lambda: last(run))
        run.set(lr_factor=0.25)
        run.pause()
        yield from until(lambda: events(run, "settings_changed") and events(run, "paused"))
        yield True

    user(script)
    run = started()
    assert run.state == "stopped", run.folder.log.read_text()
    count = len(steps(run.folder))
    runs.stop = lambda folder: len(steps(folder)) > count + 3
    resume(run.id)
    assert run.state == "stopped", run.folder.log.read_text()
    assert {e.lr for e in steps(run.folder)[count:]} == {0.025}  # from its first step
    assert len(events(run, "paused")) == 1


@pytest.fixture
def steerable(monkeypatch):
    """Make the local source take thresholds as a reader does; record its calls."""
    calls = []

    def set_thresholds(self, **values):
        if values["ut"] > 1000:
            raise BadInput("ut is more than memory has.")
        calls.append(values)

    for name, does in {
        "set_thresholds": set_thresholds,
        "pause": lambda self, *, paused: calls.append(paused),
        "look": lambda self: None,
    }.items():
        monkeypatch.setattr(LocalSource, name, does, raising=False)
    return calls


def test_thresholds_go_to_the_source_once_and_a_refusal_is_said(user, steerable):
    def ask(run, **values):
        named = {f"soft_labels.{name}": value for name, value in values.items()}
        append(run.path, SetValues(time=1.0, member="in_process/seed0", set=named))

    def script(run):
        yield from until(lambda: last(run))
        ask(run, lt=32.0, ut=700.0)
        yield from until(lambda: events(run, "settings_changed"))
        ask(run, ut=5000.0)
        yield from until(lambda: events(run, "warned"))
        run.pause()
        yield from until(lambda: events(run, "paused"))
        ask(run, lt=16.0, ut=600.0)
        yield from until(lambda: len(events(run, "settings_changed")) == 2)  # in the pause
        run.go_on()
        yield from until(lambda: events(run, "continued"))
        yield True

    user(script)
    run = started(source="in_process")
    assert run.state == "stopped", run.folder.log.read_text()
    assert steerable == [
        {"lt": 32.0, "ut": 700.0}, True, {"lt": 16.0, "ut": 600.0}, False
    ]  # fmt: skip
    first, second = events(run, "settings_changed")
    assert first.values == {"soft_labels.lt": 32.0, "soft_labels.ut": 700.0}
    assert second.values == {"soft_labels.lt": 16.0, "soft_labels.ut": 600.0}
    (warned,) = events(run, "warned")
    assert warned.message == "The thresholds were not changed. ut is more than memory has."


# Going back


LEFT = {"train.epochs": 3, "train.evaluate_every": 1}


def ruined(run, at=10, factor=50.0):
    """Raise the learning rate so that the run learns nothing, and train on for a while."""
    yield from until(lambda: last(run) >= at)
    run.set(lr_factor=factor)
    yield from until(lambda: events(run, "settings_changed"))
    yield from until(lambda: last(run) >= at + 5)


def weights(run):
    (path,) = run.path.rglob("student.safetensors")
    return path.read_bytes()


def as_if_never_changed(run, quiet):
    """Assert the weights and losses of a quiet run, with each sample counted once."""
    assert run.state == "finished", run.folder.log.read_text()
    assert weights(run) == weights(quiet)
    assert losses(run.folder) == losses(quiet.folder)
    (taken,) = events(run, "settings_reverted")
    assert taken.values == {"lr_factor": 1.0}
    assert (
        events(run, "resumed")[-1].step
        == taken.step
        == events(run, "settings_changed")[0].step
    )
    result = run.result
    assert (result["samples_lost"], result["samples_repeated"]) == (0, 0)
    assert result["samples_seen"] == quiet.result["samples_seen"]
    assert result["samples_rolled_back"] >= 3 * 32
    assert {one.name: one.value for one in run.tunables()}["lr_factor"] == 1.0


@pytest.mark.parametrize("source", ["none", "in_process"])
@pytest.mark.long
def test_taken_back_it_ends_as_one_that_was_never_changed(user, source):
    quiet = started(LEFT, source=source)

    def script(run):
        yield from ruined(run)
        assert run.back() == events(run, "settings_changed")[0].step

    user(script)
    as_if_never_changed(started(LEFT, source=source), quiet)


@pytest.mark.parametrize("at", ["asked", "renamed", "noted", "resumed"])
@pytest.mark.long
def test_killed_while_it_goes_back_it_is_resumed_and_does(user, runs, monkeypatch, at):
    """A resume completes the way back wherever it was interrupted, and repeats no part."""
    quiet = started(LEFT)

    def script(run):
        yield from ruined(run)
        run.checkpoint()
        yield from until(lambda: len(events(run, "checkpoint_saved")) == 2)
        run.back()
        if at == "asked":
            raise Killed
        yield from until(lambda: at == "resumed" and events(run, "resumed"))
        raise Killed

    def killed(**_):
        raise Killed

    user(script)
    with monkeypatch.context() as patch:
        if at == "renamed":
            patch.setattr(kept.RevertPoint, "write", kept_until(kept.RevertPoint.write))
        elif at == "noted":
            patch.setattr("kdlab.run.process.run_process.SettingsReverted", killed)
        run = started(LEFT)
    assert run.state == "lost"
    runs.stop = lambda folder: False
    resume(run.id)
    if at == "noted":  # only its event is missing
        step = events(run, "settings_changed")[0].step
        event = SettingsReverted(member="none/seed0", step=step, values={"lr_factor": 1.0})
        EventLog(run.folder.events).emit(event)
    as_if_never_changed(run, quiet)


def kept_until(write):
    """Write as `write` does, but raise `Killed` where the run notes that it went back."""

    def until_gone(way, folder):
        if way.gone:
            raise Killed
        write(way, folder)

    return until_gone


@pytest.mark.long
def test_one_that_has_failed_goes_back_when_it_is_resumed(user, runs):
    quiet = started(LEFT)

    def script(run):
        yield from ruined(run)
        raise Diverged("The loss is nan.")

    user(script)
    run = started(LEFT)
    assert run.state == "failed"
    run.back()
    assert not events(run, "settings_reverted")
    runs.stop = lambda folder: False
    resume(run.id)
    as_if_never_changed(run, quiet)


def test_undone_first_it_goes_back_all_the_same_and_only_once(user):
    def script(run):
        yield from ruined(run)
        run.set(lr_factor=1.0)
        yield from until(lambda: len(events(run, "settings_changed")) == 2)
        step = last(run)
        assert run.back() == events(run, "settings_changed")[0].step < step
        yield from until(lambda: events(run, "settings_reverted"))
        yield from until(lambda: last(run) > step)
        with pytest.raises(BadInput, match="no checkpoint from before a change"):
            run.back()
        yield True

    user(script)
    run = started()
    assert run.state == "stopped", run.folder.log.read_text()
    assert events(run, "settings_reverted")[0].values == {}
    (taken,) = [k for k, one in enumerate(read_all(run.folder.events))
                if one.KIND == "settings_reverted"]  # fmt: skip
    after = read_all(run.folder.events)[taken:]
    assert {one.lr for one in after if one.KIND == "step_logged"} == {0.1}


def test_it_goes_back_to_a_step_that_is_named(user):
    def script(run):
        for step in (3, 6):
            yield from until(lambda step=step: last(run) >= step)
            run.checkpoint()
            count = len(events(run, "checkpoint_saved"))
            yield from until(lambda n=count: len(events(run, "checkpoint_saved")) > n)
        first, second = (one.step for one in events(run, "checkpoint_saved"))
        with pytest.raises(BadInput, match=rf"up to step 1 .*steps: {first}, {second}"):
            run.back(to=1)
        assert run.back(to=second - 1) == first
        yield from until(lambda: events(run, "resumed"))
        assert events(run, "resumed")[0].step == first
        yield from until(lambda: last(run) > second)
        yield True

    user(script)
    run = started()
    assert run.state == "stopped", run.folder.log.read_text()


def test_a_checkpoint_that_is_damaged_is_no_way_back(user):
    def script(run):
        yield from ruined(run, factor=2.0)
        (path,) = run.path.rglob("step_*")
        (path / "state.safetensors").write_bytes(b"")
        with pytest.raises(BadInput, match=r"is damaged .*0 bytes"):
            run.back()
        run.checkpoint()
        yield from until(lambda: len(events(run, "checkpoint_saved")) == 2)
        step = events(run, "settings_changed")[0].step
        order = Back(time=time.time(), member="none/seed0", step=step, set={})
        append(run.path, order)  # of somebody who does not look
        yield from until(lambda: events(run, "warned"))
        yield from until(lambda: events(run, "resumed"))
        yield True

    user(script)
    run = started()
    assert run.state == "stopped", run.folder.log.read_text()
    assert "No way back: the checkpoint of step" in events(run, "warned")[0].message
    assert events(run, "resumed")[0].step == events(run, "checkpoint_saved")[1].step
    assert not events(run, "settings_reverted")
