"""The rows and means of a run's result, from reports that are made up."""

import dataclasses
import math
from statistics import stdev

import pytest
from tests_support import event
from written_runs import result_of

import kdlab
from kdlab.events.log import EventLog
from kdlab.experiment.folder import RunFolder
from kdlab.run.process.outcome import outcome, row, shares_cores
from kdlab.train.evaluate import Accuracy

COSTS = {"student": {"parameters": 10.0}}
WAITED = {
    "served_s": 10.0, "starved_s": 5.0, "queued_s": 6.0, "views_s": 1.0, "computed_s": 2.0,
    "wire_s": 1.0,
}  # fmt: skip


def report(source="none", seed=0, top1=80.0, **more):
    usual = dict(
        last=Accuracy(top1, 99.0, 100),
        best=Accuracy(top1 + 1, 99.5, 100),
        validation_last=70.0,
        validation_best=72.0,
        best_epoch=1,
        samples_per_second=1000.0 + seed,
        train_seconds=3.0,
        repeated=1,
        rolled_back=2,
        parameters=10,
        wall_seconds=4.0,
    )
    return result_of(f"{source}/seed{seed}", **usual | more)


@pytest.fixture
def combine(tmp_path):
    """Combine reports of members into the outcome of a run; `events` are what it emits."""

    events = []

    def make(name, *reports, overrides=(), **more):
        return outcome(
            kdlab.load(f"smoke/{name}", *overrides).spec,
            reports,
            run=RunFolder(tmp_path),
            experiment=name,
            dataset="digits",
            wall_seconds=9.0,
            guessing=10.0,
            emit=events.append,
            **more,
        )

    make.events = events
    return make


def test_one_training_is_the_whole_result(combine, tmp_path):
    result = combine("none", report(costs=COSTS))
    assert (result.run_id, result.run_dir) == (tmp_path.name, str(tmp_path))
    assert (result.student_top1, result.student_top1_best) == (80.0, 81.0)
    assert (result.student_top5, result.validation_top1) == (99.0, 70.0)
    assert result.student_top1_std is None  # one seed has no deviation
    assert (result.samples_seen, result.samples_repeated, result.samples_rolled_back) == (
        480, 1, 2
    )  # fmt: skip
    assert (result.epochs, result.costs, result.teacher_top1) == (2, COSTS, None)
    assert (result.status, result.method, result.source) == (
        "finished",
        "methods/student",
        "none",
    )
    assert len(result.runs) == 1


def test_over_seeds_accuracies_are_means_and_counts_are_sums(combine):
    reports = [report("cached", seed, top1) for seed, top1 in enumerate((80.0, 82.0, 87.0))]
    result = combine("cached", *reports, overrides=["seeds=[0, 1, 2]"])
    assert result.student_top1 == pytest.approx(83.0)
    assert result.student_top1_std == pytest.approx(stdev([80.0, 82.0, 87.0]))
    assert result.samples_per_second == pytest.approx(1001.0)
    assert (result.samples_seen, result.samples_repeated) == (1440, 3)
    assert result.seeds == [0, 1, 2]


def test_of_a_comparison_the_described_source_is_the_result_and_all_have_rows(combine):
    reports = [
        report(source, seed, top1, teacher_top1=teacher)
        for seed in (0, 1)
        for source, top1, teacher in (("none", 50.0, None), ("cached", 80.0 + seed, 97.5))
    ]
    compared = ["compare=[none, cached]", "seeds=[0, 1]"]
    result = combine("cached", *reports, overrides=compared)
    assert result.source == "cached"
    assert result.student_top1 == pytest.approx(80.5)
    assert result.samples_seen == 960  # of it alone
    assert result.teacher_top1 == 97.5
    assert (result.verdict.kind, result.verdict.by, result.verdict.gained) == (
        "helped", "seeds", 30.5
    )  # fmt: skip
    assert [(r.source, r.seed) for r in result.runs] == [
        ("none", 0), ("cached", 0), ("none", 1), ("cached", 1)
    ]  # fmt: skip


def test_the_verdict_reads_curves(combine, tmp_path):
    members = [("none/seed0", 80.0, None), ("in_process/seed0", 79.0, 79.5)]
    began = ("run_started", {"dataset": {"validation": 10_000}})
    ends = [
        (
            "epoch_done",
            {"member": name, "epoch": epoch, "validation_top1": 50.0 + 10 * epoch},
        )
        for name, _, _ in members
        for epoch in (1, 2)
    ]
    joined(RunFolder(tmp_path), began, *ends)
    reports = [
        report(name.split("/")[0], top1=top1, teacher_top1=teacher)
        for name, top1, teacher in members
    ]
    options = ["compare=[none, in_process]", "train.device=cpu"]
    verdict = combine("in_process", *reports, overrides=options).verdict
    assert (verdict.kind, verdict.by) == ("did_not_help", "test_images")
    assert verdict.why == (
        "the teacher knows no more than the student does alone: 79.5 % against 80.0 %",
        "too few epochs: both still rise on validation (+10.0 and +10.0 points at the end)",
    )
    assert "train.epochs=4" in verdict.next
    assert combine("none", report()).verdict is None


def test_who_shares_cores():
    spec = kdlab.load("smoke/served", "train.device=cpu", "teacher_pool.device=cpu").spec
    shared = [name for name in ("none", "cached", "in_process", "served")
              if shares_cores(spec, name)]  # fmt: skip
    assert shared == ["in_process", "served"]
    assert row(report("served", shares_cores=True)).shares_cores
    apart = kdlab.load("smoke/served", "train.device=cpu", "teacher_pool.device=cuda").spec
    assert not shares_cores(apart, "served")
    emulated = {"teacher_pool": {"use": "teacher_pools/emulated"}}
    spec = kdlab.load("smoke/served", "train.device=cpu", emulated).spec
    assert not shares_cores(spec, "served")


def test_what_no_training_has_is_none_and_what_one_lacks_is_left_out(combine):
    nothing = combine("none", report(validation_last=math.nan, validation_best=math.nan))
    assert nothing.validation_top1 is None
    assert nothing.validation_top1_best is None
    assert nothing.global_top1 is None
    reports = [report(seed=0, validation_last=math.nan), report(seed=1)]
    assert combine("none", *reports).validation_top1 == 70.0


def test_costs_are_of_the_first_that_could_be_measured(combine):
    reports = [report(seed=0), report(seed=1, costs=COSTS)]
    assert combine("none", *reports).costs == COSTS


# Rows


def test_a_row_has_the_figures_of_its_reader():
    figures = {
        "resends": 3.0, "volume_max": 600.0, "bytes_per_sample_reference": 12.0,
        "bytes_per_sample_value": 0.0, "exchanged_bytes": 2_500_000.0,
    }  # fmt: skip
    member = row(report("served", figures=figures, more={"gap": 1.5}))
    assert (member.resends, member.volume_max) == (3.0, 600.0)
    assert member.bytes_per_sample == {"reference": 12.0}  # by value none was sent
    assert member.exchanged_mb == 2.5
    assert member.more == {"gap": 1.5}
    assert (member.student_path, member.member) == ("student.safetensors", "served/seed0")


def test_a_row_without_a_reader_has_none_of_them():
    member = row(report())
    assert (member.resends, member.volume_max, member.bytes_per_sample) == (0, 0, {})
    assert (member.exchanged_mb, member.bottleneck, member.starved, member.verdict) == (
        None,
    ) * 4


def test_a_row_names_the_slow_side():
    member = row(report("served", figures=WAITED))
    assert (member.bottleneck, member.starved) == ("teachers", 0.5)
    assert "Teachers are the bottleneck" in member.verdict


def test_every_number_of_a_row_can_be_written_as_json():
    member = dataclasses.asdict(row(report(validation_last=math.nan)))
    assert not [v for v in member.values() if isinstance(v, float) and math.isnan(v)]


# Engines


def joined(folder, *events):
    log = EventLog(folder.events)
    for kind, facts in events:
        log.emit(event(kind, **facts))


def test_engines_are_named_where_teachers_chose(combine, tmp_path):
    joined(
        RunFolder(tmp_path),
        ("teacher_joined", {"engine": "compiled float16, on a GPU"}),
        ("teacher_joined", {"engine": "eager float32"}),
        ("engine_changed", {"engine": "compiled float16, on another"}),
    )
    chosen = combine("served", report("served"), overrides=["teacher_pool.engine=auto"])
    assert chosen.teacher_engines == ["compiled float16", "eager float32"]
    assert combine("served", report("served")).teacher_engines == []  # eager was asked for


def test_rounds_without_a_worker_are_said_of_its_training(combine, tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    closed = {
        "of_rounds": 4,
        "iterations": 8,
        "loss": 1.0,
        "parallel_s": 1.0,
        "round_s": 1.0,
    }
    # The second round was begun again after a resume, and then all were there.
    models = [[0, 1, 2], [0, 1], [0, 1, 2], [0, 2], [0], [0, 1, 2]]
    for number, present in zip([0, 1, 1, 2, 3, 4], models, strict=True):
        facts = closed | {"round": number, "models": present, "member": "ec_dnn/seed0"}
        log.emit(event("round_closed", 1, **facts))
    result = combine("none", report("ec_dnn", lost=2960), report("none"))
    lost, complete = result.runs
    words = "2 of 5 rounds went without worker 1, 1 of 5 rounds went without worker 2"
    assert (lost.without, complete.without) == (words, "")
    (check,) = [one for one in result.checks if one["code"] == "KD-R08"]
    assert (check["result"], check["advice"].split(" ")[0]) == (
        "issue",
        "method.wait_for_lost=true",
    )
    assert words in check["found"]


def test_findings_of_before_and_of_the_end_are_in_the_result_and_events(combine, tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    early = {"result": "tip", "title": "t", "found": "f", "advice": "a"}
    log.emit(event("run_started", 1, dataset={"validation": 100}))
    log.emit(event("check_made", 1, code="KD-M01", **early))
    log.emit(event("run_started", 2, dataset={"validation": 100}))  # resumed: looked again
    log.emit(event("check_made", 2, code="KD-D08", **early))
    checks = combine("none", report(top1=11.0, lost=2)).checks
    results = {one["code"]: one["result"] for one in checks}
    assert results == {
        "KD-R06": "issue", "KD-R08": "issue", "KD-D08": "tip", "KD-R03": "tip",
    }  # fmt: skip
    assert [one.code for one in combine.events] == ["KD-R03", "KD-R06", "KD-R08"]
    assert [one["code"] for one in checks[:2]] == ["KD-R06", "KD-R08"]


def test_epochs_of_blocks_are_not_those_of_the_whole_student_that_comes_after(
    combine, tmp_path
):
    log = EventLog(tmp_path / "events.jsonl")
    log.emit(event("run_started", 1, dataset={"validation": 400}))

    def epoch(number, top1):
        counts = {"of_epochs": 4, "step": 1, "samples_lost": 0, "samples_repeated": 0}
        facts = counts | {"samples_per_second": 1.0, "validation_top1": top1}
        log.emit(event("epoch_done", 1, epoch=number, member="none/seed0", **facts))

    for number, top1 in ((1, 90.0), (2, 68.0), (3, 70.0), (4, 69.0)):
        epoch(number, top1)
    started = {"member": "none/seed0", "epochs": 3, "distilled": {}}
    for number, top1 in ((1, 76.0), (2, 60.0), (3, 61.0)):
        log.emit(event("whole_student_started", 1, **started))  # resumed after each epoch
        epoch(number, top1)
    searched = report("none", best_epoch=1, epochs=4)
    blocks = report("none", best_epoch=1, epochs=4, more={"blocks_top1": 67.0})
    for reported, recipe in ((searched, "method.retrain"), (blocks, "method.fine_tune")):
        checks = {check["code"]: check for check in combine("none", reported).checks}
        best = (
            "none, seed 0: best in epoch 1 of 3 (76.0 % on validation), 61.0 % at the end"
        )
        assert checks["KD-R05"]["found"] == best
        assert checks["KD-R03"]["found"] == "few epochs (3)"
        assert checks["KD-R03"]["advice"] == f"More epochs ({recipe}.epochs=6)"
