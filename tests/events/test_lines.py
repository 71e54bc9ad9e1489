"""Lines of events for people, where a line is more than its fields."""

import pytest
from tests_support import event

from kdlab.events.blockwise import BlocksChosen, PlanMeasured, WholeStudentStarted
from kdlab.events.ensemble import (
    ErrorsMeasured,
    LocalModelLost,
    RoundIncomplete,
    WorkerResumed,
)
from kdlab.events.images import ImagesAnswered
from kdlab.events.ranks import GenerationStarted
from kdlab.events.sweeps import SweepStarted, TrialRequeued, TrialStopping


@pytest.mark.parametrize(
    ("logged", "line"),
    [
        (PlanMeasured(predicted_s=0.02, measured_s=0.016, predicted_over_measured=1.25),
         "a step took 0.0160 s, predicted 0.0200 s (1.25 of it)"),
        (BlocksChosen(choices=["skip"], table="a table", faster=2.5),
         "a table\nthe student is 2.50 times as fast as the teacher"),
        (WholeStudentStarted(epochs=3, distilled={}), "training the whole student (3 epochs)"),
        (WorkerResumed(worker=2, step=40), "worker 2 resumes at step 40"),
        (RoundIncomplete(round=4, models=[0, 2]), "round 4 continues with the models of [0, 2]"),
        (TrialStopping(number=7, epoch=2, value=91.126), "trial 7 is pruned after epoch 2 (91.13)"),
        (TrialRequeued(number=7, why="its worker was lost", tries=1),
         "trial 7 is retried: its worker was lost"),
    ],
)  # fmt: skip
def test_a_line_has_its_numbers(logged, line):
    assert logged.text().strip() == line


def test_ranks_of_a_generation_are_counted_and_named():
    begun = GenerationStarted(number=2, ranks={"a": 17, "b": 4})
    assert begun.text() == "generation 2: 2 ranks start"
    assert begun.pids() == {"a": 17, "b": 4}
    old = GenerationStarted(number=1, ranks=3)  # that torchrun had started: a log keeps it
    assert (old.text(), old.pids()) == ("generation 1: 3 ranks start", {})


def test_a_lost_worker_is_named_where_it_is_a_local_model():
    assert (
        LocalModelLost(why="exit code -9", worker=2).text()
        == "worker 2 is lost: exit code -9"
    )
    assert (
        LocalModelLost(why="exit code -9", order=5).text()
        == "a worker is lost: exit code -9"
    )


def test_a_sweep_says_what_it_is_for():
    started = event("sweep_started", study="s", objectives=["top1", "seconds"])
    assert isinstance(started, SweepStarted)
    assert started.text() == "sweep s: top1, seconds"


def test_errors_of_a_round_are_those_of_local_and_global_model():
    look = event(
        "errors_measured",
        member="ec",
        iterations=40,
        chosen=12.5,
        global_=10.0,
        parallel_s=3.0,
    )
    assert isinstance(look, ErrorsMeasured)
    assert (
        "40 iterations  test error local 12.50 %, global 10.00 %  after 3.0 s"
        in look.text()
    )


def test_what_images_are_taken_for_is_drawn_and_not_said():
    assert ImagesAnswered(step=1, epoch=1, said=["cat"], shares=[99.0]).text() == ""
