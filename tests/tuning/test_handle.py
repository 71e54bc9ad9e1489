"""A sweep from outside, over a folder that was written by hand."""

import time

import pytest
from optuna.trial import TrialState, create_trial
from small_sweeps import SIMULATED, TRAINED, searched
from tests_support import event

from kdlab.errors import BadInput, ClusterError, NotFoundError, RunFailed, RunStopped
from kdlab.experiment.folder import sweeps_folder
from kdlab.tuning import attach_sweep
from kdlab.tuning.folder import SweepFolder, open_study
from kdlab.tuning.handle import ProgressLines, Sweep, check_name
from kdlab.tuning.verdicts import ERROR, METRICS, RETRY_OF, VALUES, WHY


def trial(number, top1=None, state=TrialState.COMPLETE, **attributes):
    values = {"train.lr": 0.1 + number / 100, "train.momentum": 0.5}
    attributes = {VALUES: values, WHY: "suggested"} | attributes
    if top1 is not None:
        attributes[METRICS] = {"validation_top1": top1}
    return create_trial(
        state=state, values=None if top1 is None else [top1], user_attrs=attributes
    )


@pytest.fixture
def sweep(elsewhere):
    """A sweep whose search has ended, with the cards of its best trial."""
    folder = written("small", TRAINED, state="finished", result={"study": "small"})
    study = open_study(folder, searched(TRAINED).spec, "h")
    for entry in (
        trial(0, 70.0, **{WHY: "the experiment as it is"}),
        trial(1, 81.5),
        trial(2, state=TrialState.FAIL, **{ERROR: "no room\nfor ut: is 512"}),
        trial(3, state=TrialState.FAIL, **{ERROR: "signal 9; tried again"}),
        trial(4, 75.25, **{RETRY_OF: 3}),
        trial(5, state=TrialState.PRUNED),
    ):
        study.add_trial(entry)
    study.enqueue_trial({})
    for place in ("configs", "registry/train"):
        path = folder.path / "best" / place / "small.yaml"
        path.parent.mkdir(parents=True)
        path.write_text("about: the best\n")
    return Sweep(folder)


def written(name, tree, **status):
    """Write the folder of a sweep as it is before its process begins."""
    search = searched(tree)
    folder = SweepFolder(sweeps_folder() / name)
    folder.path.mkdir(parents=True)
    search._write(folder, {})
    folder.write_status(created=time.time() - 3600, **status)
    return folder


def test_rows_are_the_trials_that_were_given_to_somebody(sweep):
    assert [(r.number, r.state) for r in sweep.rows()] == [
        (0, "complete"), (1, "complete"), (2, "fail"), (3, "fail"), (4, "complete"),
        (5, "pruned"),
    ]  # fmt: skip
    assert sweep.rows()[4].retry_of == 3
    assert sweep.rows()[1].values == {"validation_top1": 81.5}


def test_the_table_begins_with_the_best_and_leaves_out_what_was_tried_again(sweep):
    head, *lines = sweep.table().splitlines()
    assert head.split() == [
        "trial", "state", "validation_top1", "train.lr", "train.momentum", "from",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines] == ["1", "4", "0", "2", "5"]
    assert "for ut: is 512" in lines[3]
    assert "no room" not in lines[3]  # what went wrong is on the last line of an error
    assert len(sweep.table(most=2).splitlines()) == 3


def test_a_trial_that_breaks_a_constraint_says_so_and_stands_behind(elsewhere):
    folder = written("simulated", SIMULATED, state="running")
    study = open_study(folder, searched(SIMULATED).spec, "h")
    for teachers, share in ((1, 0.4), (6, 0.99)):
        figures = {"teachers": teachers, "volume_max": 9, "of_n_training": share}
        attributes = {VALUES: {"lt": 4}, METRICS: figures}
        study.add_trial(create_trial(values=[teachers, 9], user_attrs=attributes))
    lines = Sweep(folder).table().splitlines()
    assert lines[1].split()[:2] == ["1", "complete"]
    assert "breaks a constraint" in lines[2]
    assert "2 of 12 trials ended" in Sweep(folder)._repr_html_()


def test_a_sweep_in_html_has_its_curve_its_table_and_what_went_wrong(sweep):
    shown = sweep._repr_html_()
    assert "<strong>Sweep small</strong>" in shown
    assert "6 of 4 trials ended" in shown
    assert ">finished<" in shown
    assert "data:image/svg+xml" in shown
    assert ">81.5</td>" in shown
    assert "data-tone" not in shown.partition("</style>")[2]
    sweep.folder.write_status(state="failed", error="<b>disk</b>")
    assert 'data-tone="bad">&lt;b&gt;disk&lt;/b&gt;</p>' in sweep._repr_html_()
    assert repr(sweep) == "Sweep(small, failed, 6 trials ended)"


def test_before_its_study_is_there_a_sweep_has_no_rows(elsewhere):
    sweep = Sweep(written("new", TRAINED, state="starting"))
    assert sweep.rows() == []
    assert sweep.importance() == {}
    assert sweep.pictures() == []
    assert sweep.table().split()[0] == "trial"
    with pytest.raises(NotFoundError, match="no study yet"):
        _ = sweep.study
    with pytest.raises(NotFoundError, match="no best yet; it is lost"):
        sweep.save("tuned")


@pytest.mark.parametrize(
    ("status", "error", "code", "words"),
    [
        ({"state": "stopped"}, RunStopped, 130, "Continue with:\n    kdlab sweep .*--study x"),
        ({"state": "failed", "error": "no such card", "exit_code": 2}, RunFailed, 2,
         "no such card\nLog: .*sweep.log\nFinished trials are saved.*--study x"),
        ({"state": "running"}, RunFailed, 1, "killed from outside"),
    ],
)  # fmt: skip
def test_why_there_is_no_result(elsewhere, status, error, code, words):
    sweep = Sweep(written("x", TRAINED, **status))
    with pytest.raises(error, match=f"(?s){words}") as caught:
        _ = sweep.result
    assert caught.value.exit_code == code


def test_a_result_is_found_by_the_name_of_the_study(sweep):
    assert attach_sweep("small").result == attach_sweep().result == {"study": "small"}
    assert sweep.name == "sweeps/small"
    with pytest.raises(NotFoundError, match="Nearest: small"):
        attach_sweep("smol")


def test_the_best_is_saved_under_a_name_that_is_free(sweep, elsewhere):
    saved = sweep.save("tuned")
    assert sorted(str(p.relative_to(elsewhere)) for p in saved) == [
        "configs/tuned.yaml",
        "registry/train/tuned.yaml",
    ]
    assert saved[0].read_text() == "about: the best\n"
    with pytest.raises(BadInput, match=r"tuned.yaml exists already"):
        sweep.save("tuned")
    for name in ("../up", "", "a b", "x" * 201):
        with pytest.raises(BadInput, match="is no name"):
            check_name(name)


def test_a_sweep_that_is_under_way_is_not_started_again(elsewhere):
    folder = written("small", SIMULATED, state="running")
    with folder.held(), pytest.raises(NotFoundError, match="is running; no result"):
        _ = Sweep(folder).result
    with (
        folder.held(),
        pytest.raises(
            BadInput, match=r"small is already running.*kdlab attach sweeps/small"
        ),
    ):
        searched(SIMULATED).start("small")
    with pytest.raises(BadInput, match="'a b' is no name; use"):
        searched(SIMULATED).start("a b")
    with pytest.raises(BadInput, match=r"xxx.* is no name; use .* 200 bytes at most"):
        searched(SIMULATED).start("x" * 201)


def test_a_folder_that_cannot_be_written_starts_nothing(elsewhere):
    sweeps_folder().parent.mkdir(parents=True)
    sweeps_folder().write_text("a file where the folder should be")
    with pytest.raises(ClusterError, match=r"(?s)cannot be written.*Nothing was started"):
        searched(SIMULATED).start("small")


# Lines


class Console:
    def __init__(self):
        self.printed = []

    def print(self, text, **how):
        self.printed.append(str(text))


@pytest.fixture
def lines():
    progress = ProgressLines()
    progress.console = Console()
    return progress


def done(number, top1, **more):
    metrics = None if top1 is None else {"validation_top1": top1}
    facts = {"state": "complete", "feasible": True, "seconds": 0.1, "of_trials": 30}
    return event(
        "trial_done", number=number, ended=number + 1, values_found=metrics, **facts | more
    )


def started(direction="maximize"):
    return event(
        "sweep_started", study="s", objectives=["validation_top1"], directions=[direction]
    )


def test_quick_trials_are_lines_where_they_are_the_best_so_far(lines):
    lines.on_event(started())
    for number, top1 in enumerate((50.0, 40.0, 60.0)):
        lines.on_event(done(number, top1))
    assert lines.console.printed == [
        "sweep s: validation_top1",
        "  1/30  trial 0  validation_top1 50  0.1 s  best so far",
        "  3/30  trial 2  validation_top1 60  0.1 s  best so far",
    ]


def test_less_is_better_where_the_sweep_says_so(lines):
    lines.on_event(started("minimize"))
    for number, top1 in enumerate((50.0, 40.0, 60.0)):
        lines.on_event(done(number, top1))
    assert [line.split()[2] for line in lines.console.printed[1:]] == ["0", "1"]


def test_every_twentieth_and_each_slow_trial_is_a_line(lines):
    lines.on_event(started())
    for number in range(21):
        lines.on_event(done(number, 50.0 - number))
    assert [line.split()[0] for line in lines.console.printed[1:]] == ["1/30", "20/30"]
    lines.on_event(done(22, 1.0, seconds=3.0))
    assert lines.console.printed[-1].endswith("3.0 s")


def test_failures_constraints_and_pruned_ones_are_said(lines):
    lines.on_event(started())
    lines.on_event(done(0, None, state="failed", error="no room\nat all", seconds=None))
    lines.on_event(done(1, 99.0, feasible=False, seconds=2.0))
    lines.on_event(done(2, None, state="pruned", epoch=4, seconds=2.0))
    assert lines.console.printed[1:] == [
        "  1/30  trial 0 failed: no room",
        "  2/30  trial 1  validation_top1 99  2.0 s  breaks a constraint",
        "  3/30  trial 2 pruned after 4 epochs",
    ]
