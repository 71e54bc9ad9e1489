"""A device as a rank: the plan it makes or keeps, what it says of it, and its generations."""

import json
import threading
from dataclasses import replace

import pytest
import torch
import yaml
from small_pipelines import CPU, same
from threaded_ranks import worlds_of_threads

import kdlab
from kdlab.config.home import read_as
from kdlab.errors import BadInput
from kdlab.events.log import select
from kdlab.experiment.folder import RunFolder
from kdlab.methods.blockwise import planning
from kdlab.methods.blockwise.rank import BlockRank, _Generation
from kdlab.methods.blockwise.setup import cutting_of, identity_of
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.exported import load_exported
from kdlab.models.model import export
from kdlab.models.separable import Separable
from kdlab.papers.pipe_bd.block_cost import Block, Profile, StageCosts
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan
from kdlab.papers.pipe_bd.relay import Span
from kdlab.papers.pipe_bd.stages import pipeline
from kdlab.supervision.rank_messages import GenerationOrder
from kdlab.train.aggregation.ranks import GenerationEnds

TEACHER = CifarResNet(depth=8, width=(4, 4, 8, 8))


@pytest.fixture
def run(elsewhere, tmp_path, digits):
    """Make the folder of a run, with its teacher's weights: `run(plan, *overrides)`."""
    data, _ = digits
    weights = tmp_path / "teacher.safetensors"
    torch.manual_seed(1)
    export(TEACHER.build(10, 1), TEACHER, weights, data)

    def make_run(plan="tr", *words, name="a", devices=1):
        experiment = kdlab.load(
            "smoke/blockwise",
            "teacher={type: train/teacher, model: {type: models/cifar_resnet, depth: 8,"
            f" width: [4, 4, 8, 8], weights: {weights}}}}}",
            f"method.plan={plan}", f"method.devices={devices}", "method.profile_s=0.01",
            "method.profile_steps=1", "train.epochs=2", "train.batch=48",
            "train.log_every_steps=1", *words,
        )  # fmt: skip
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir()
        (folder.path / "spec.yaml").write_text(yaml.safe_dump(experiment.resolved))
        folder.write_origin("smoke/blockwise", experiment.hash)
        folder.write_status(created=0.0)
        return folder

    return make_run


def rank_of(folder, plan="tr", beat=lambda generation, step: None):
    rank = BlockRank(folder, f"{plan}/seed0", beat)
    rank.folder.mkdir(parents=True, exist_ok=True)
    return rank


def order(tmp_path, generation=1):
    place = f"file://{tmp_path}/meet{generation}"
    return GenerationOrder(generation=generation, world=1, meet_at=place, secret="s")


def run_generation(rank, generation_order):
    """Run a generation in a thread that torch.distributed takes for a process."""
    outcome = {}

    def live():
        try:
            outcome["result"] = rank.generation(generation_order)
        except Exception as error:
            outcome["error"] = error

    with worlds_of_threads():
        thread = threading.Thread(target=live)
        thread.start()
        thread.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


def cut(rank, fits=True):
    spec, data = rank.spec, rank.setup.data
    teacher = rank.setup.teacher.members[0].build(10, 1)
    return cutting_of(rank.method.cuts, spec, teacher, data, 0, CPU, fits=fits)


def profile(*seconds, devices=2, fewer=0.5):
    """Return a profile of blocks that take so many seconds; half the rows take `fewer` of it."""
    blocks = [
        Block(
            teacher_s={24: fewer * s, 48: s},
            student_s={24: fewer * s, 48: s},
            output_bytes=1,
            gradient_bytes=1,
            fixed_bytes=1,
            row_bytes=1,
            norms=0,
        )
        for s in seconds
    ]
    return Profile(types={"cpu": blocks}, devices=("cpu",) * devices, load_s=0.001)


def costs_of(block_profile):
    return StageCosts(block_profile, 48)


def of_kind(folder, kind):
    return list(select(folder.events, kind))


@pytest.mark.long
def test_a_generation_measures_plans_trains_and_tells(run, tmp_path):
    beats, folder = [], run()
    rank = rank_of(folder, beat=lambda *beat: beats.append(beat))
    result = run_generation(rank, order(tmp_path, 4))
    assert (result.lost, result.repeated, result.seen) == (0, 0, 480)
    assert {generation for generation, _ in beats} == {4}
    assert beats[-1] == (4, 10)
    (plan,) = of_kind(folder, "plan_chosen")
    stored = json.loads((rank.folder / "plan.json").read_text())
    assert stored["programme"] == plan.programme
    assert stored["devices"] == [planning.kind_of(CPU)]
    assert [e.message for e in of_kind(folder, "note")] == [
        "measuring the blocks on all devices"
    ]
    (measured,) = of_kind(folder, "plan_measured")
    assert measured.predicted_over_measured == pytest.approx(
        measured.predicted_s / measured.measured_s
    )
    for picture in ("trace.json", "gantt.svg", "breakdown.png"):
        assert (rank.folder / picture).is_file()
    assert len(of_kind(folder, "trace_recorded")) == 2
    load_exported(result.model_path)
    # Asked again, another process finds the profile and the plan, and makes neither.
    (folder.path / "profile.json").unlink()
    again = run_generation(rank_of(folder), order(tmp_path, 5))
    assert again.last == result.last
    assert len(of_kind(folder, "plan_chosen")) == len(of_kind(folder, "note")) == 1


@pytest.mark.long
def test_a_rank_that_leaves_saves_and_the_next_generation_ends_alike(run, tmp_path):
    quiet, folder = run("ir"), run("ir", name="b")
    first = run_generation(rank_of(quiet, "ir"), order(tmp_path))
    rank = rank_of(folder, "ir", lambda generation, step: steps.append(step))
    steps = []
    rank.leaving = True
    with pytest.raises(GenerationEnds):
        run_generation(rank, order(tmp_path, 2))
    assert max(steps) < 10
    second = run_generation(rank_of(folder, "ir"), order(tmp_path, 3))
    expected, resumed = (load_exported(r.model_path).state_dict() for r in (first, second))
    assert same(expected, resumed)


def test_a_plan_is_made_of_a_profile_and_kept(run):
    folder = run("ahd", devices=2)
    rank = rank_of(folder, "ahd")
    costs = costs_of(profile(0.1, 0.1, 0.2))
    ((chosen, *_), _) = rank._planned(costs, None)
    assert isinstance(chosen, ExecutionPlan)
    assert chosen.name == "ahd"
    rank._report_plan(chosen, costs, cut(rank))
    (event,) = of_kind(folder, "plan_chosen")
    assert event.ideal_s == pytest.approx({"load": 0.0005, "teacher": 0.2, "student": 0.2})
    stored = read_as(planning.KeptPlan, rank.folder / "plan.json")
    assert rank._planned(None, stored) == ([chosen], "")


def test_unlike_devices_share_the_ideal_by_their_speeds(run):
    """A device three times as fast does three quarters of the work; both work alike long."""
    quick, slow = profile(0.1, 0.3).types["cpu"], profile(0.3, 0.9).types["cpu"]
    both = Profile(types={"a": slow, "b": quick}, devices=("a", "b"), load_s=0.0)
    folder = run("ahd", devices=2)
    rank, costs = rank_of(folder, "ahd"), costs_of(both)
    ((chosen, *_), _) = rank._planned(costs, None)
    rank._report_plan(chosen, costs, cut(rank))
    (event,) = of_kind(folder, "plan_chosen")
    # Alone the quick one needs 0.8 s and the slow one 2.4 s, half of it for the teacher.
    assert event.ideal_s == pytest.approx({"load": 0, "teacher": 0.3, "student": 0.3})


def test_too_little_memory_is_an_answer_for_all_ranks(run):
    rank = rank_of(run("ahd", devices=2), "ahd")
    small = replace(profile(0.1, 0.1, 0.2), memory_bytes=(1.0, 1.0))
    plans, why = rank._planned(costs_of(small), None)
    assert plans == []
    assert "fits into the memory" in why


# In the searched plan both devices share all blocks; that of tr has two stages.
SHARED = (0.5, 0.5, 1.0)


@pytest.mark.parametrize(
    ("plan", "words", "stages"),
    [
        ("ahd", [], [1, 2]),
        ("ahd", ["method.replan=false"], [1]),
        ("tr", [], [2]),
    ],
)
def test_only_a_searched_plan_is_measured_beside_that_of_tr(run, plan, words, stages):
    rank = rank_of(run(plan, *words, devices=2), plan)
    costs = costs_of(profile(*SHARED))
    plans, _ = rank._planned(costs, None)
    assert [len(candidate.plans[0].stages) for candidate in plans] == stages
    assert {candidate.name for candidate in plans} == {plan}


@pytest.mark.parametrize(("by_tr", "better"), [(0.5, 1), (0.97, 0), (1.5, 0)])
def test_tr_trains_where_its_steps_take_clearly_less(
    run, tmp_path, monkeypatch, by_tr, better
):
    rank = rank_of(run("ahd", devices=2), "ahd")
    plans, _ = rank._planned(costs_of(profile(*SHARED)), None)
    takes, loaded = {1: 1.0, 2: by_tr}, []

    def step_s(plan, copies):
        loaded.extend(len(copies.load(step, 0, 48)) for step in range(40))
        return takes[len(plan.stages)]

    monkeypatch.setattr("kdlab.methods.blockwise.rank.step_s", step_s)
    chosen = rank._better(plans, _Generation(order(tmp_path), cut(rank), CPU))
    assert chosen.plans == plans[better].plans
    assert f"1000.0 ms a step for some steps, {1e3 * by_tr:.1f} ms by tr" in chosen.why
    assert set(loaded) == {48}  # whole batches, again and again


def test_a_kept_profile_is_taken_or_it_is_said_why_not(run, tmp_path):
    folder = run()
    rank = rank_of(folder)
    identity = identity_of(rank.spec, cut(rank), rank.setup.data)
    assert rank._stored_profile(identity) == (None, "")  # measure
    path = folder.path / "profile.json"
    planning.write_profile(profile(0.1, 0.1, 0.1), identity, path)
    assert rank._stored_profile(identity)[0].devices == ("cpu", "cpu")
    assert rank._stored_profile(replace(identity, model="another")) == (None, "")
    assert "blocks are measured again" in of_kind(folder, "note")[-1].message
    named = rank_of(run("tr", f"method.profile={path}", name="c"))
    assert (
        "another batch (48, here 7)" in named._stored_profile(replace(identity, batch=7))[1]
    )
    misconfigured = rank_of(run("tr", f"method.profile={tmp_path}/none.json", name="b"))
    assert "There is no profile at" in misconfigured._stored_profile(identity)[1]
    with pytest.raises(BadInput, match="There is no profile at"):
        run_generation(misconfigured, order(tmp_path))


class Steps:
    def __init__(self, *step_s):
        self.step_s = list(step_s)


@pytest.mark.parametrize(("measured", "warned"), [(0.11, False), (0.5, True), (0.05, True)])
def test_a_prediction_far_off_is_worth_a_warning(run, measured, warned):
    folder = run()
    rank = rank_of(folder)
    plan = ExecutionPlan("tr", (), 0.1, "")
    rank._compare(plan, Steps())  # no step was measured
    assert not of_kind(folder, "plan_measured")
    rank._compare(plan, Steps(measured, measured, 9.0))
    (event,) = of_kind(folder, "plan_measured")
    assert (event.predicted_s, event.measured_s) == (0.1, measured)
    warnings = of_kind(folder, "warned")
    assert bool(warnings) == warned
    if warned:
        assert f"A step took {1e3 * measured:.1f} ms, 100.0 ms were" in warnings[0].message


def test_spans_are_told_after_every_epoch_and_drawn_once(run):
    folder = run("ahd", devices=2)
    rank = rank_of(folder, "ahd")
    costs = costs_of(profile(0.1, 0.1, 0.2))
    ((chosen, *_), _) = rank._planned(costs, None)
    rank._report_plan(chosen, costs, cut(rank))
    spans = [Span(0, "load", 3, 10.0, 10.5), Span(0, "teacher", 3, 10.5, 10.75)]
    rank._write_trace(spans)
    drawn = (rank.folder / "gantt.svg").read_text()
    assert "teacher 33%" in drawn
    rank._write_trace(spans[1:])
    assert (rank.folder / "gantt.svg").read_text() == drawn
    first, second = of_kind(folder, "trace_recorded")
    assert first.spans == [[0, "load", 3, 0.0, 0.5], [0, "teacher", 3, 0.5, 0.75]]
    assert second.spans == [[0, "teacher", 3, 0.0, 0.25]]


class Captured(Exception):
    """Ends a test's call with the arguments that a replaced function got."""


@pytest.mark.long
def test_a_loop_is_told_its_plan_and_when_to_leave(run, tmp_path, monkeypatch):
    def loop(job):
        raise Captured(job)

    monkeypatch.setattr("kdlab.methods.blockwise.rank.BlockwiseLoop", loop)
    rank = rank_of(run())
    chosen = ExecutionPlan("tr", (pipeline(48, [3], [1]),), 0.1, "")
    with pytest.raises(Captured) as raised:
        rank._train(_Generation(order(tmp_path), cut(rank), CPU), chosen)
    (job,) = raised.value.args
    assert job.programme is chosen
    assert not job.leave()
    rank.saving = True
    assert job.leave()


@pytest.mark.long
def test_blocks_that_are_wholly_the_teachers_stay_as_they_are(run, tmp_path):
    """They cost nothing in the profile; the others begin near the teacher's and learn."""
    resnet = "{type: models/cifar_resnet, depth: 8, width: [4, 4, 8, 8]}"
    words = (
        f"student={{type: models/separable, of: {resnet}, only: [4, 5]}}",
        "method.teacher_cuts=[blocks.0, blocks.1]",
        "method.student_cuts=[blocks.0, blocks.1]",
    )
    folder = run("tr", *words)
    rank = rank_of(folder)
    cutting = cut(rank)
    assert cutting.same == [0, 2]
    resumed = cut(rank, fits=False)  # a checkpoint brings the weights
    assert resumed.same == [0, 2]
    assert not same(cutting.student.net.state_dict(), resumed.student.net.state_dict())
    result = run_generation(rank, order(tmp_path))
    student = load_exported(result.model_path).net
    begun = cutting.student.net.state_dict()
    theirs = rank.setup.teacher.members[0].build(10, 1).net.state_dict()
    learnt = [k for k, _ in student.named_parameters() if k.startswith("blocks.1")]
    copied = [k for k, _ in student.named_parameters() if not k.startswith("blocks.1")]
    final = student.state_dict()
    assert learnt
    assert all(final[k].equal(theirs[k]) for k in copied)
    assert not any(final[k].equal(begun[k]) for k in learnt)
    measured = json.loads((folder.path / "profile.json").read_text())
    (blocks,) = measured["types"].values()
    assert [set(block["student_s"].values()) == {0.0} for block in blocks] == [
        True,
        False,
        True,
    ]
    messages = [e.message for e in of_kind(folder, "note")]
    assert "blocks equal to the teacher's are not trained: 0, 2" in messages


@pytest.mark.long
def test_a_student_that_may_not_inherit_or_has_weights_begins_with_its_own(run, tmp_path):
    resnet = "{type: models/cifar_resnet, depth: 8, width: [4, 4, 8, 8]}"
    student = f"type: models/separable, of: {resnet}, only: [4, 5]"
    fresh = cut(
        rank_of(run("tr", f"student={{{student}}}", "method.inherit=false", name="a"))
    )
    assert fresh.same == []
    path = tmp_path / "student.safetensors"
    spec = Separable(of=CifarResNet(depth=8, width=(4, 4, 8, 8)), only=(4, 5))
    torch.manual_seed(5)
    model = spec.build(10, 1)
    export(model, spec, path, rank_of(run(name="b")).setup.data)
    cuts = cut(rank_of(run("tr", f"student={{{student}, weights: {path}}}", name="c")))
    assert cuts.same == []
    weights, begun = (dict(net.named_parameters()) for net in (model.net, cuts.student.net))
    assert same(begun, weights)


@pytest.mark.long
def test_stand_ins_are_fitted_at_the_start_and_not_where_a_checkpoint_is(
    run, tmp_path, monkeypatch
):
    def cutting(*arguments, fits):
        raise Captured(fits)

    monkeypatch.setattr("kdlab.methods.blockwise.rank.cutting_of", cutting)
    rank, fitted = rank_of(run()), []
    for step in (None, 4):
        if step is not None:
            (rank.folder / f"checkpoints/step_{step:08d}").mkdir(parents=True)
        with pytest.raises(Captured) as raised:
            rank.generation(order(tmp_path))
        fitted += raised.value.args
    assert fitted == [True, False]
