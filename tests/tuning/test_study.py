"""The study on disk: torn journals, other sweeps, what is tried again, what is best."""

import optuna
import pytest
from optuna.trial import TrialState, create_trial
from small_sweeps import SIMULATED, TRAINED, searched

from kdlab.errors import BadInput, ClusterError, NotFoundError
from kdlab.events.event import discard_event
from kdlab.tuning import best
from kdlab.tuning.driver import Driver
from kdlab.tuning.folder import SweepFolder, check_hash, find, mend, open_study
from kdlab.tuning.verdicts import RETRY_OF, VALUES, RunningTrial


def open_at(path, search):
    path.mkdir(exist_ok=True, parents=True)
    return open_study(SweepFolder(path), search.spec, search.hash)


@pytest.mark.parametrize("torn", [b'{"op_code": 4, "wor', b"", b"x" * 200_000])
def test_a_torn_journal_is_mended(tmp_path, torn):
    search = searched(SIMULATED)
    study = open_at(tmp_path / "s", search)
    study.tell(study.ask(), [1, 2])
    with (tmp_path / "s" / "study.journal").open("ab") as file:
        file.write(torn)
    again = open_at(tmp_path / "s", search)
    again.tell(again.ask(), [3, 4])
    states = [t.state for t in open_at(tmp_path / "s", search).trials]
    assert states == [TrialState.COMPLETE] * 2


def test_a_journal_of_nothing_but_a_torn_line(tmp_path):
    path = tmp_path / "j"
    path.write_bytes(b"half a li")
    mend(path)
    assert path.read_bytes() == b""
    mend(tmp_path / "none")  # there is no journal yet


def test_a_study_of_another_sweep_is_not_gone_on_with(tmp_path):
    search, changed = searched(SIMULATED), searched(SIMULATED, overrides={"steps": 30})
    folder = SweepFolder(tmp_path)
    check_hash(folder, search.hash, "small")  # nothing is there yet
    folder.spec.write_text("x")
    (tmp_path / "experiment.json").write_text(f'{{"spec_hash": "{search.hash}"}}')
    check_hash(folder, search.hash, "small")
    with pytest.raises(BadInput, match=r"(?s)another sweep.*--study") as error:
        check_hash(folder, changed.hash, "other")
    assert error.value.exit_code == 2
    assert search.hash in str(error.value)


@pytest.mark.parametrize("damage", [b"{[", b"\xff\xfe\xff", b"- a", b"", None])
def test_a_damaged_sweep_is_named(tmp_path, damage):
    folder = SweepFolder(tmp_path)
    if damage is not None:
        folder.spec.write_bytes(damage)
    with pytest.raises(BadInput, match=r"sweep\.yaml in .* is damaged"):
        folder.sweep()


def test_more_trials_are_the_same_sweep():
    assert searched(SIMULATED).hash == searched(SIMULATED, trials=99, jobs=2).hash
    assert searched(TRAINED).hash != searched(TRAINED, seeds=[3]).hash


def test_an_unknown_study(elsewhere):
    with pytest.raises(NotFoundError, match=r"no sweep 'x'.*no sweeps yet"):
        find("x")


def trial(values, **metrics):
    return create_trial(
        values=values,
        params={},
        distributions={},
        user_attrs={"metrics": metrics, VALUES: {}},
    )


def test_the_best_keeps_the_constraints():
    search = searched(SIMULATED)
    study = optuna.create_study(directions=["minimize", "minimize"])
    study.add_trial(trial([1, 10], of_n_training=0.5))  # too slow
    study.add_trial(trial([3, 90], of_n_training=0.95))
    study.add_trial(trial([2, 50], of_n_training=0.99))
    study.add_trial(trial([2, 40], of_n_training=0.97))
    study.add_trial(trial([4, 20], of_n_training=0.97))
    assert (
        best.best_of(study, search.spec).number == 3
    )  # fewest teachers, then least memory
    assert [t.number for t in best.front(study, search.spec)] == [3, 4]


def test_no_trial_keeps_them():
    search = searched(SIMULATED)
    study = optuna.create_study(directions=["minimize", "minimize"])
    study.add_trial(trial([1, 10], of_n_training=0.5))
    with pytest.raises(
        ClusterError, match=r"1 trials completed, and none meets.*of_n_training"
    ):
        best.best_of(study, search.spec)


def test_no_trial_ended_well():
    study = optuna.create_study()
    study.add_trial(create_trial(state=TrialState.FAIL, user_attrs={"error": "no room"}))
    with pytest.raises(ClusterError, match=r"(?s)1 failed.*no room"):
        best.best_of(study, searched(TRAINED).spec)


class NoWorkers:
    """No worker is idle: a driver does only what comes before the first trial."""

    def idle(self):
        return []

    def events(self):
        return []


def driver(study, search):
    return Driver(
        space=search.space,
        study=study,
        workers=NoWorkers(),
        make=lambda number, values: {},
        emit=discard_event,
        stop=lambda: False,
    )


def test_trials_under_way_are_tried_again_once(tmp_path):
    """Also where the driver before was killed between its two writes."""
    search = searched(SIMULATED)
    study = open_at(tmp_path / "s", search)
    for _ in range(3):
        study.ask()  # for ever under way
    driver(study, search)._recover_trials()
    driver(study, search)._recover_trials()
    waiting = [t for t in study.trials if t.state == TrialState.WAITING]
    assert [t.user_attrs[RETRY_OF] for t in waiting] == [0, 1, 2]
    assert [t.state for t in study.trials[:3]] == [TrialState.FAIL] * 3
    assert best.counts(study).ended == 0


def test_what_was_enqueued_is_tried_again_whole(tmp_path):
    """The driver was killed when the trial had some of its values."""
    search = searched(SIMULATED)
    study = open_at(tmp_path / "s", search)
    driver(study, search)._enqueue()
    trial = study.ask()
    trial.suggest_int("cases.0.teachers", 1, 8)  # then the driver was killed
    again = open_at(tmp_path / "s", search)
    driver(again, search)._recover_trials()
    values = search.space.suggest(again.ask())
    assert values == {"cases.0.teachers": 8, "lt": 4, "ut": 32}  # the card as it is


def test_an_interrupted_enqueueing_is_ended(tmp_path):
    search = searched(SIMULATED, enqueue=[{"cases.0.teachers": 2, "lt": 2, "ut": 8}])
    study = open_at(tmp_path / "s", search)
    runner = driver(study, search)
    study.set_user_attr = lambda *_: 1 / 0  # it is killed before it has noted the end
    with pytest.raises(ZeroDivisionError):
        runner._enqueue()
    again = open_at(tmp_path / "s", search)
    driver(again, search)._enqueue()
    driver(again, search)._enqueue()
    assert len(again.trials) == 2  # each once


def test_a_study_that_goes_on_draws_other_points(tmp_path):
    search = searched(SIMULATED, defaults=False)

    def drawn():
        study = open_at(tmp_path / "s", search)
        return [search.space.suggest(study.ask())["lt"] for _ in range(4)]

    assert not set(drawn()) & set(drawn())


def test_a_trial_with_a_follower_gets_no_second_one(tmp_path):
    search = searched(SIMULATED)
    study = open_at(tmp_path / "s", search)
    study.ask()
    study.enqueue_trial({}, user_attrs={RETRY_OF: 0})  # then it was killed
    driver(study, search)._recover_trials()
    assert len([t for t in study.trials if t.state == TrialState.WAITING]) == 1
    assert study.trials[0].state == TrialState.FAIL


def test_a_trial_that_is_lost_too_often_fails(tmp_path):
    search = searched(SIMULATED, retries=1)
    study = open_at(tmp_path / "s", search)
    runner = driver(study, search)
    runner.verdicts.requeue(RunningTrial(study.ask()), "signal 9")
    runner.verdicts.requeue(RunningTrial(study.ask()), "signal 9")
    assert study.trials[1].user_attrs["error"].startswith("lost 2 times")
    assert not [t for t in study.trials if t.state == TrialState.WAITING]
    assert best.counts(study).ended == 1


def test_a_stop_by_the_user_is_no_loss(tmp_path):
    search = searched(SIMULATED, retries=1)
    study = open_at(tmp_path / "s", search)
    runner = driver(study, search)
    for _ in range(5):
        runner.verdicts.requeue(RunningTrial(study.ask()), "was stopped", counts=False)
    assert len([t for t in study.trials if t.state == TrialState.WAITING]) == 1


def test_a_study_stays_what_it_was_when_fields_go():
    """The key `real` was removed, and studies from before that continue."""
    assert searched(TRAINED).hash == "4a64b125ed68472b"
