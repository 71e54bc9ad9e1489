"""Blockwise distillation as a run: all plans agree, and bad settings are refused early."""

import json
import os
import signal
import textwrap
from functools import partial

import pytest
import tests_support
import yaml
from runs_here import after
from safetensors.torch import load_file
from threaded_ranks import ThreadedRank

import kdlab
from kdlab.events.log import select
from kdlab.run.handle.run import resume
from kdlab.train.evaluate import evaluate

until = partial(tests_support.until, every_s=0.002)


def started(*overrides):
    return kdlab.load(
        "smoke/blockwise", "tracking.enabled=false", "method.profile_s=0.5", *overrides
    ).start(lambda line: None)


def weights(run, member):
    return load_file(run.path / "members" / member / "seed0" / "student.safetensors")


def apart(first, second):
    """Return the largest difference of any weight."""
    assert first.keys() == second.keys()
    return max(float((first[k].double() - second[k].double()).abs().max()) for k in first)


@pytest.mark.processes
def test_a_run_trains_every_sample_once_and_shows_its_plan(kdlab_home, elsewhere):
    run = started("train.epochs=2", "train.log_every_steps=1").wait(timeout_s=600)
    result = run.result
    assert result["method"] == "methods/blockwise"
    assert (result["samples_lost"], result["samples_repeated"]) == (0, 0)
    dataset = next(iter(select(run.folder.events, "run_started"))).dataset
    assert result["samples_seen"] == 2 * dataset.train
    folder = run.path / "members" / "tr" / "seed0"
    plan = json.loads((folder / "plan.json").read_text())
    (pipeline,) = plan["programme"]["plans"]
    assert [s["devices"] for s in pipeline["stages"]] == [[0], [1]]
    assert "all work shared evenly" in plan["table"]
    trace = json.loads((folder / "trace.json").read_text())["traceEvents"]
    names = {e["name"] for e in trace if e["ph"] == "X"}
    assert {"load", "teacher", "student", "backward", "send", "receive", "update"} <= names
    assert (folder / "gantt.svg").read_text().startswith("<svg")
    assert (folder / "breakdown.png").stat().st_size > 5000
    (sheet,) = run.plans()
    assert sheet.member == "tr/seed0"
    assert "data:image/svg+xml;base64" in sheet._repr_html_()
    traces = list(select(run.folder.events, "trace_recorded"))
    assert len(traces) == 2  # epochs
    assert {device for device, *_ in traces[1].spans} == {0, 1}
    assert 0 < len({step for _, _, step, *_ in traces[1].spans}) <= 12
    (profile,) = [json.loads((run.path / "profile.json").read_text())]
    assert len(profile["devices"]) == 2
    steps = [e for e in select(run.folder.events, "step_logged") if e.member == "tr/seed0"]
    losses = [e.block_losses for e in steps]
    assert all(len(values) == 3 for values in losses)
    assert sum(losses[-1][:2]) < sum(losses[0][:2])  # blocks learn their teacher's
    (checked,) = select(run.folder.events, "plan_measured")
    assert checked.measured_s > 0


@pytest.mark.processes("five plans, within this process")
def test_all_plans_train_the_same_student(wherever, kdlab_home, elsewhere):
    run = started(
        "method.compare=[tr, ls, ahd, ir, dp]", "train.epochs=1", "train.batch=40"
    ).wait(timeout_s=600)
    relayed = weights(run, "tr")
    assert apart(relayed, weights(run, "ls")) == 0  # whole batches: to the last bit
    for plan in ("ahd", "ir", "dp"):  # rows in another order
        assert apart(relayed, weights(run, plan)) < 2e-3, plan
    rows = {row["source"]: row for row in run.result["runs"]}
    assert set(rows) == {"tr", "ls", "ahd", "ir", "dp"}
    assert len({row["samples_seen"] for row in rows.values()}) == 1
    assert all(row["samples_lost"] == row["samples_repeated"] == 0 for row in rows.values())
    assert run.result["source"] == "tr"


@pytest.mark.slow("three runs with ranks, whose chances are those of a process")
def test_chances_depend_on_step_and_block_and_not_on_the_plan(kdlab_home, elsewhere):
    """Dropout in a student: the same masks, whichever device trains the block."""
    dropping = "student={type: models/nin, width: 8, dropout: 0.5}"
    dropping = [dropping, "train.lr=0.01", "train.epochs=1"]
    run = started(*dropping, "method.compare=[tr, ls]").wait(timeout_s=600)
    assert run.state == "finished", run.status
    assert apart(weights(run, "tr"), weights(run, "ls")) == 0
    reseeded = started(*dropping, "seeds=[1]").wait(timeout_s=600)
    path = reseeded.path / "members" / "tr" / "seed1" / "student.safetensors"
    assert apart(weights(run, "tr"), load_file(path)) > 0


@pytest.mark.processes("two runs, within this process")
def test_a_rank_that_is_gone_is_replaced_and_the_weights_are_those_of_a_quiet_run(
    inline_runs, kdlab_home, elsewhere
):
    """The rank is killed in the third epoch, a step after the second epoch's checkpoint."""
    words = ["train.epochs=4"]
    quiet = started(*words)
    inline_runs.once(1, 17, ThreadedRank.kill)
    run = started(*words)
    assert run.state == "finished", run.status
    assert len(list(select(run.folder.events, "rank_lost"))) == 1
    assert len(list(select(run.folder.events, "generation_started"))) == 2
    assert apart(weights(quiet, "tr"), weights(run, "tr")) == 0
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0
    assert len(list(select(run.folder.events, "group_recovered"))) == 1


@pytest.mark.slow("two runs with ranks, each a Python with torch")
def test_a_killed_rank_is_replaced_and_the_weights_are_those_of_a_quiet_run(
    kdlab_home, elsewhere
):
    quiet = started("train.epochs=20").wait(timeout_s=600)
    run = started("train.epochs=20", "method.standby=1")
    until(lambda: list(select(run.folder.events, "checkpoint_saved")))
    pids = next(iter(select(run.folder.events, "generation_started"))).ranks
    os.kill(list(pids.values())[1], signal.SIGKILL)
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status
    assert len(list(select(run.folder.events, "rank_lost"))) == 1
    assert len(list(select(run.folder.events, "generation_started"))) == 2
    assert apart(weights(quiet, "tr"), weights(run, "tr")) == 0
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0


@pytest.mark.processes("two runs, within this process")
def test_stopped_after_any_step_it_goes_on_there(inline_runs, kdlab_home, elsewhere):
    words = ["train.epochs=3", "train.batch=16"]
    words += ["train.log_every_steps=1"]  # else it is looked at when time has passed
    quiet = started(*words)
    inline_runs.stop_when(after(17))
    run = started(*words)
    assert run.state == "stopped", run.status
    (saved,) = [e.step for e in select(run.folder.events, "checkpoint_saved")][-1:]
    # Of three epochs; a busy machine may let the ranks reach the end of the second one.
    assert 17 <= saved < 45
    resume(run.id)
    assert run.state == "finished", run.status
    (again,) = select(run.folder.events, "resumed")
    assert again.step == saved
    assert again.rolled_back == 0
    assert apart(weights(quiet, "tr"), weights(run, "tr")) == 0
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0


@pytest.mark.nightly
def test_stopped_in_an_epoch_it_goes_on_there(kdlab_home, elsewhere):
    words = ["train.epochs=12", "train.batch=8"]
    quiet = started(*words).wait(timeout_s=600)
    run = started(*words)
    until(lambda: [e for e in select(run.folder.events, "step_logged") if e.epoch == 1])
    run.stop()
    run.wait(timeout_s=600)
    assert run.state == "stopped", run.status
    (saved,) = [e.step for e in select(run.folder.events, "checkpoint_saved")][-1:]
    resume(run.id).wait(timeout_s=600)
    assert run.state == "finished", run.status
    (again,) = select(run.folder.events, "resumed")
    assert again.step == saved
    assert again.rolled_back == 0
    assert apart(weights(quiet, "tr"), weights(run, "tr")) == 0
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0


def test_fine_tuning_goes_on_from_the_distilled_student(
    wherever, kdlab_cli, digits, kdlab_home, elsewhere
):
    student = (
        "student={type: models/cifar_resnet, depth: 8, width: [6, 6, 12, 12]}"  # adapters
    )
    run = started(
        student, "train.epochs=8", "train.lr=0.1",
        "method.fine_tune={epochs: 4, batch: 32, lr: 0.01, threads: 1}",
    ).wait(timeout_s=600)  # fmt: skip
    member = json.loads((run.path / "members/tr/seed0/result.json").read_text())
    assert member["last"]["top1"] > member["distilled"]["top1"]
    card = json.loads((run.path / "members/tr/seed0/whole/student.json").read_text())
    assert card["model"]["type"] == "models/adapted"
    code, out, _ = kdlab_cli("export", run.id, "--out", "found.safetensors")
    assert code == 0
    lines = out.split("Load it:\n")[1]
    names = {}
    exec(textwrap.dedent(lines), names)  # what is printed is what a user would run
    data, _ = digits
    evaluation = evaluate(names["model"], data, data.test)
    assert evaluation.top1 == pytest.approx(member["last"]["top1"])


@pytest.mark.slow("two searches in a supernet, and two trainings of what they found")
def test_a_search_finds_a_network_and_trains_it(wherever, kdlab_cli, kdlab_home, elsewhere):
    run = kdlab.load(
        "smoke/search",
        "tracking.enabled=false",
        "method.compare=[tr, dp]",
        "train.epochs=1",
    ).start(lambda line: None)
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status
    choices = [e.choices for e in select(run.folder.events, "architecture_found")]
    assert len(choices) == 2
    assert len(set(choices[0])) > 1  # the architecture has moved
    folder = run.path / "members" / "tr" / "seed0"
    card = yaml.safe_load((folder / "architecture.yaml").read_text())
    assert card["choices"] == choices[0]
    retrained = json.loads((folder / "whole" / "student.json").read_text())
    assert retrained["model"]["choices"] == choices[0]
    # It is a card that any experiment can use.
    shelf = elsewhere / "registry" / "students"
    shelf.mkdir(parents=True)
    (shelf / "found.yaml").write_text((folder / "architecture.yaml").read_text())
    code, out, _ = kdlab_cli("show", "smoke/none", "student={use: students/found}")
    assert code == 0
    assert "models/proxyless" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method.devices=5"], "plan: tr gives every device a block of its own, and there"),
        (["method.plan=ir", "method.devices=40"], "32 rows are fewer than 40 devices"),
        (["method.plan=ls", "method.devices=4"], "leave 1 of 4 devices without any"),
        (["method.plan=dp", "method.devices=20"], "each needs at least two rows: 40"),
        (["method.teacher_cuts=[stem]"], "cut both networks, or neither"),
        (
            ["method.teacher_cuts=[blocks.0.conv1]", "method.student_cuts=[stem]"],
            "which skips the cut",
        ),
        (["method.teacher_cuts=[blocks.9]", "method.student_cuts=[stem]"], "Nearest: "),
        (
            ["method.teacher_cuts=[blocks.0]", "method.student_cuts=[blocks.1]"],
            "they cannot meet",
        ),
        (["method.blocks=40"], "can be cut into 1 to"),
        (["method.memory_gb=0.00001"], "needs"),
        (["method.memory_gb=0.00001", "method.plan=ahd"], "No plan of 3 blocks"),
        (["method.profile=/nowhere/profile.json"], "There is no profile at /nowhere"),
        (["soft_labels.type=soft_labels/in_process"], "only method.fine_tune or"),
        (["aggregation.type=train/aggregation/all_reduce"], "shares gradients itself"),
        (["compare=[none]"], "it compares method.compare"),
        (["teacher=null"], "needs one, block by block"),
        (["train.label_smoothing=0.1"], "blocks learn without labels"),
        (
            ["train.layer_decay=0.5", "train.optimizer=timm/sgd"],
            "layers of a whole network",
        ),
        (["train.ema=0.9"], "the mean of a block is nobody's input"),
        (
            [
                "chaos={kill_rank: 1}",
                "workers={address: 'tcp://127.0.0.1:9', insecure: true}",
            ],
            "chaos cannot hit ranks on Dask workers",
        ),
        (["method.search={every: 2}"], "has nothing to choose from"),
        (["method.retrain={epochs: 1}"], "is set without search"),
    ],
    ids=lambda w: w[-1] if isinstance(w, list) else None,
)
@pytest.mark.long
def test_refused(kdlab_cli, elsewhere, words, message):
    code, _, err = kdlab_cli("run", "smoke/blockwise", *words)
    assert code == 2, err
    assert "Traceback" not in err
    assert message in err
    assert not (elsewhere / "runs").exists()


def test_a_profile_of_another_batch_is_refused_and_the_right_one_is_used(
    wherever, kdlab_cli, kdlab_home, elsewhere
):
    run = started("train.epochs=1").wait(timeout_s=600)
    profile = f"method.profile={run.path / 'profile.json'}"
    code, _, err = kdlab_cli("run", "smoke/blockwise", profile, "train.batch=16")
    assert code == 2
    assert "was measured on another batch (32, here 16)" in err
    code, _, err = kdlab_cli(
        "run", "smoke/blockwise", profile, "student.width=[8, 8, 16, 16]"
    )
    assert code == 2
    assert "was measured on another model" in err
    again = started(profile, "train.epochs=1").wait(timeout_s=600)
    assert again.state == "finished"
    notes = [e.message for e in select(again.folder.events, "note")]
    assert not any("measuring" in note for note in notes)


def test_a_device_that_does_not_make_it_faster_is_left_idle(
    wherever, kdlab_home, elsewhere
):
    """With very slow links one device is quicker than two, and trains the same student."""
    first = started("train.epochs=1").wait(timeout_s=600)
    profile = json.loads((first.path / "profile.json").read_text())
    for link in profile["links"].values():
        link |= {"latency_s": 100.0, "meet_s": 100.0}
    (elsewhere / "slow.json").write_text(json.dumps(profile))
    run = started(
        "train.epochs=1", "method.plan=ahd", "method.replan=false",
        f"method.profile={elsewhere / 'slow.json'}",
    ).wait(timeout_s=600)  # fmt: skip
    assert run.state == "finished"
    plan = json.loads((run.path / "members" / "ahd" / "seed0" / "plan.json").read_text())
    (pipeline,) = plan["programme"]["plans"]
    (stage,) = pipeline["stages"]
    assert stage["devices"] == [0]
    assert "device 1 idle: no plan" in plan["table"]
    assert any(line.split() == ["idle", "1"] for line in plan["table"].splitlines())
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)
    assert apart(weights(run, "ahd"), weights(first, "tr")) == 0
