"""EC-DNN and its baselines as runs: processes, losses, bad input."""

import json
import os
import signal
from functools import partial

import pytest
import tests_support
import yaml
from safetensors.torch import load_file

import kdlab
from kdlab.errors import NotFoundError
from kdlab.events.log import select
from kdlab.models.ensemble import Combination, combined
from kdlab.models.exported import load_exported
from kdlab.run.handle.chaos import OtherTargets
from kdlab.run.handle.run import resume
from kdlab.run.outputs.export import export_global
from kdlab.train.evaluate import evaluate
from kdlab.train.lineage import Odometer

until = partial(tests_support.until, every_s=0.01)

EC = (
    "method.compare={}",
    "aggregation={type: train/aggregation/ensemble, tau: 8, "
    "compression: {type: train/compression/distillation, p_iterations: 4}}",
)


def experiment(*overrides):
    return kdlab.load("smoke/ensemble", "tracking.enabled=false", *overrides)


def apart(first, second):
    assert first.keys() == second.keys()
    return max(float((first[k] - second[k]).abs().max()) for k in first)


def student(run, member):
    return load_file(run.path / "members" / member / "seed0" / "student.safetensors")


@pytest.mark.nightly
@pytest.mark.processes
def test_missing_classes_are_said(kdlab_home, elsewhere):
    skewed = "method.shards={kind: dirichlet, concentration: 0.05}"
    run = experiment(*EC, skewed, "method.processes=false", "train.epochs=8").start()
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status
    warnings = [e.message for e in select(run.folder.events, "warned")]
    assert any("Local data lacks some of" in text for text in warnings)


@pytest.mark.nightly
@pytest.mark.processes
def test_the_last_models_have_the_form_of_their_compression(kdlab_home, elsewhere):
    sparse = (
        EC[1].replace("distillation", "pruning").replace("p_it", "sparsity: 0.75, p_it")
    )
    sparse = sparse.replace("tau: 8", "tau: 8, compress_last: true")
    run = experiment("method.compare={}", sparse, "method.processes=false").start()
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status
    files = list(run.path.rglob("student.safetensors"))
    assert files
    for path in files:
        for name, weight in load_file(path).items():
            if weight.dim() >= 2:
                assert int((weight == 0).sum()) >= int(0.75 * weight.numel()), (path, name)


@pytest.mark.processes("four methods one after the other, with their pictures")
def test_four_methods_side_by_side(kdlab_home, elsewhere):
    run = experiment("method.processes=false").start().wait(timeout_s=600)
    assert run.state == "finished", run.status
    rows = {row["source"]: row for row in run.result["runs"]}
    assert list(rows) == ["s_dnn", "e_dnn", "ma_dnn", "ec_dnn"]
    assert all(row["samples_lost"] == 0 for row in rows.values())
    assert all(row["global_top1"] is not None for row in rows.values())
    assert "global top-1" in run.table()
    looks = list(select(run.folder.events, "errors_measured"))
    assert {look.member for look in looks} == {f"{name}/seed0" for name in rows}
    ec = run.path / "members" / "ec_dnn" / "seed0"
    for picture in ("curves.png", "histograms.png"):
        assert (ec / picture).stat().st_size > 5000
    assert (run.path / "comparison.png").stat().st_size > 10_000
    text = str(kdlab.compare(run))
    for name, row in rows.items():
        assert f"| {name} |" in text
        assert f"{100 - row['global_top1']:.2f}" in text
    # The ensemble of E-DNN can be a teacher: a card lists its networks.
    card = (ec / "ensemble.yaml").read_text()
    assert card.count("weights:") == 3
    text = export_global(run.id, out=str(elsewhere / "averaged"), member="ma_dnn/seed0")
    assert str(elsewhere / "averaged.safetensors") in text
    assert (elsewhere / "averaged.json").is_file()
    export_global(run.id, out=str(elsewhere / "ec_dnn"), member="ec_dnn/seed0")
    teacher = yaml.safe_load((elsewhere / "ec_dnn" / "ensemble.yaml").read_text())
    networks = [load_exported(t["model"]["weights"]).eval() for t in teacher["teacher"]]
    data = experiment().spec.data.load()
    ensemble = combined(networks, Combination.from_weights([1.0] * len(networks)))
    accuracy = evaluate(ensemble, data, data.test, 256).top1
    assert accuracy == pytest.approx(rows["ec_dnn"]["global_top1"], abs=0.01)
    (run.path / "members/e_dnn/seed0/ensemble.yaml").unlink()
    with pytest.raises(NotFoundError, match="no global model"):
        export_global(run.id, out=None, member="e_dnn/seed0")


@pytest.mark.nightly
@pytest.mark.slow
def test_processes_give_what_one_process_gives(kdlab_home, elsewhere):
    serial = experiment("method.processes=false").start().wait(timeout_s=600)
    parallel = experiment().start().wait(timeout_s=600)
    assert parallel.state == "finished", parallel.status
    for name in ("s_dnn", "e_dnn", "ma_dnn", "ec_dnn"):
        assert apart(student(serial, name), student(parallel, name)) == 0, name
    for first, second in zip(serial.result["runs"], parallel.result["runs"], strict=True):
        assert first["global_top1"] == second["global_top1"]


@pytest.mark.slow("four workers, each a Python with torch, and one of them twice")
@pytest.mark.parametrize(
    "what", ["train", pytest.param("combine", marks=pytest.mark.nightly)]
)
def test_a_hung_worker_is_killed_and_replaced_and_nothing_is_lost(
    kdlab_home, elsewhere, what
):
    options = (*EC, "train.epochs=40", "train.batch=10", "train.lr=0.05")
    quiet = experiment(*options, "method.processes=false").start().wait(timeout_s=600)
    run = experiment(*options, "method.hang_s=3").start()
    hit(run, what, signal.SIGSTOP)
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status
    news = list(select(run.folder.events, *(HANG := ("worker_hangs", "local_model_lost"))))
    assert [(e.KIND, e.worker) for e in news] == [(kind, 2) for kind in HANG]
    assert news[0].silent_s > 3
    (again,) = [e for e in select(run.folder.events, "worker_started") if e.again]
    texts = [e.text() for e in (*news, again)]
    assert "worker 2 sent no heartbeat for 3 s; it is killed" in texts[0]
    assert texts[1].endswith("worker-2-process-0.log")
    assert texts[2] == f"worker 2 restarted as process {again.pid}"
    assert not any("\n" in line for line in texts)
    assert not list(select(run.folder.events, "round_incomplete"))
    for key in ("samples_seen", "samples_lost", "global_top1"):
        assert run.result[key] == quiet.result[key]
    assert run.result["samples_lost"] == 0
    (odometer,) = run.path.glob("members/*/*/worker-2/odometer")
    undone = Odometer(odometer).undone
    assert run.result["samples_rolled_back"] == 10 * undone
    assert "not trained on" not in run.table()
    looks = [
        [
            (e.iterations, e.chosen, e.global_)
            for e in select(of.folder.events, "errors_measured")
        ]
        for of in (quiet, run)
    ]
    assert looks[0] == looks[1]
    assert apart(student(quiet, "ec_dnn"), student(run, "ec_dnn")) == 0


def hit(run, what, number):
    """Worker 2, just after one of its parts of a round: in the other part now."""

    def busy():
        done = [e for e in select(run.folder.events, "worker_done") if e.worker == 2]
        part = "combine" if what == "train" else "train"
        return [e for e in done if e.what == part and e.work["round"] >= 1]

    until(busy)
    started = select(run.folder.events, "worker_started")
    (pid,) = [e.pid for e in started if e.worker == 2]
    os.kill(pid, number)


@pytest.mark.slow("four workers, each a Python with torch, and one of them twice")
@pytest.mark.parametrize(
    "what", ["train", pytest.param("combine", marks=pytest.mark.nightly)]
)
def test_a_killed_worker_leaves_the_round_and_comes_back(kdlab_home, elsewhere, what):
    options = ("method.workers=4", "train.epochs=60", "train.batch=11")
    run = experiment(*EC, *options, "method.wait_for_lost=false").start()
    hit(run, what, signal.SIGKILL)
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status
    (lost,) = select(run.folder.events, "local_model_lost")
    assert lost.worker == 2
    assert "signal 9" in lost.why or "-9" in lost.why
    sizes = [len(e.models) for e in select(run.folder.events, "round_closed")]
    assert sizes[-1] == 4  # it is back for the last one
    missed = list(select(run.folder.events, "round_incomplete"))
    assert [s for s in sizes if s != 4] == [len(e.models) for e in missed]
    done = list(select(run.folder.events, "worker_done"))
    lost = sum(e.work["samples"] for e in done if e.worker == 0)  # as many as of worker 2
    lost -= sum(e.work["samples"] for e in done if e.worker == 2)
    assert lost >= 10 * 8 * len(missed)
    (row,) = run.result["runs"]
    assert row["samples_lost"] == lost
    total = lost + row["samples_seen"]
    why = f"{len(missed)} of {len(sizes)} rounds went without worker 2"
    summary = f"{why}: {lost:,} of {total:,} samples of ec_dnn/seed0 were not trained on."
    assert run.table().splitlines()[0] == summary


@pytest.mark.nightly
@pytest.mark.slow
def test_trouble_all_the_time(kdlab_home, elsewhere):
    """Killed and stopped workers, at any phase; the books are kept."""
    run = experiment(
        *EC,
        "method.workers=4",
        "method.hang_s=3",
        "method.wait_for_lost=false",
        "train.epochs=80",
        "train.batch=10",
        "chaos={kill_rank: 2, stop_rank: 1, events: 6, every_s: 1.5, lasts_s: 1.0}",
    ).start()
    until(lambda: list(select(run.folder.events, "worker_started")))
    assert {t.name for t in OtherTargets(run).ranks()} <= {f"worker-{k}" for k in range(4)}
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status.error
    assert list(select(run.folder.events, "chaos_caused"))
    assert list(select(run.folder.events, "local_model_lost"))
    missed = [4 - len(e.models) for e in select(run.folder.events, "round_incomplete")]
    (row,) = run.result["runs"]
    assert row["samples_lost"] >= 10 * 8 * sum(missed)
    last = list(select(run.folder.events, "round_closed"))[-1]
    assert len(last.models) == 4
    for done in select(run.folder.events, "worker_done"):
        if done.work["ensemble_loss"] is not None:  # Eq. 3
            mean = sum(done.work["model_losses"]) / len(done.work["model_losses"])
            assert done.work["ensemble_loss"] <= mean + 1e-6


@pytest.mark.slow("three workers, each a Python with torch, twice")
def test_stopped_and_resumed_it_ends_as_undisturbed(kdlab_home, elsewhere):
    options = (*EC, "train.epochs=40")
    # Undisturbed in one process: in processes the results are the same.
    quiet = experiment(*options, "method.processes=false").start().wait(timeout_s=600)
    run = experiment(*options).start()
    until(lambda: [e for e in select(run.folder.events, "round_closed") if e.round > 1])
    run.stop()
    run.wait(timeout_s=600)
    assert run.state == "stopped", run.status
    resume(run.id).wait(timeout_s=600)
    assert run.state == "finished", run.status
    assert apart(student(quiet, "ec_dnn"), student(run, "ec_dnn")) == 0
    assert run.result["global_top1"] == quiet.result["global_top1"]
    assert run.result["samples_lost"] == 0


OWN_CLOCKS = (
    "method.compare={}",
    "aggregation={type: train/aggregation/easgd_async, tau: 8}",
    "train.epochs=40",
)


def exchanged(run, worker):
    """Rounds in which it has exchanged with the centre, as it said so."""
    done = select(run.folder.events, "worker_done")
    return [e.work["round"] for e in done if (e.worker, e.what) == (worker, "combine")]


@pytest.mark.slow("three workers, each a Python with torch")
def test_with_own_clocks_nobody_waits_for_one_that_is_held_back(kdlab_home, elsewhere):
    run = experiment(*OWN_CLOCKS, "method.hang_s=600").start()
    until(lambda: [e for e in select(run.folder.events, "worker_started") if e.worker == 2])
    (pid,) = [e.pid for e in select(run.folder.events, "worker_started") if e.worker == 2]
    os.kill(pid, signal.SIGSTOP)
    try:  # 160 iterations of each: 20 rounds
        until(lambda: exchanged(run, 0)[-1:] == exchanged(run, 1)[-1:] == [19])
        assert not list(select(run.folder.events, "round_closed"))
    finally:
        os.kill(pid, signal.SIGCONT)
    run.wait(timeout_s=600)
    assert run.state == "finished", run.status
    done = list(select(run.folder.events, "worker_done"))
    assert [e.worker == 2 for e in done] == [False] * 80 + [True] * 40
    assert all(exchanged(run, worker) == list(range(20)) for worker in range(3))
    assert run.result["samples_lost"] == run.result["samples_rolled_back"] == 0
    (row,) = run.result["runs"]
    assert row["samples_seen"] == sum(e.work["samples"] for e in done)
    assert (row["source"], row["global_top1"] > 0) == ("easgd_async", True)
    assert list(run.path.rglob("global.safetensors"))


@pytest.mark.slow("three workers, each a Python with torch, twice")
def test_with_own_clocks_one_killed_and_all_stopped_lose_nothing(kdlab_home, elsewhere):
    run = experiment(*OWN_CLOCKS).start()
    hit(run, "train", signal.SIGKILL)
    until(lambda: list(select(run.folder.events, "local_model_lost")))
    run.stop()
    run.wait(timeout_s=600)
    assert run.state == "stopped", run.status
    before = {worker: exchanged(run, worker) for worker in range(3)}
    resume(run.id).wait(timeout_s=600)
    assert run.state == "finished", run.status
    assert len(before[2]) < 20
    assert all(exchanged(run, worker) == list(range(20)) for worker in range(3))
    (row,) = run.result["runs"]
    done = list(select(run.folder.events, "worker_done"))
    assert len(done) == 2 * 3 * 20  # no training was done again once it was reported
    assert row["samples_seen"] == sum(e.work["samples"] for e in done)
    assert row["samples_lost"] == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_served_soft_labels_and_averaged_weights(kdlab_home, elsewhere):
    """EDL-Dist's teachers for students that average their weights."""
    run = experiment(
        "method.compare={}",
        "method.workers=2",
        "aggregation={type: train/aggregation/model_average, tau: 5}",
        "teacher={use: teachers/digits_tiny}",
        "teacher_pool={type: cluster/local_pool, teachers: 1, engine: eager}",
        "soft_labels={type: cluster/served, lt: 64, ut: 256}",
    )
    run = run.start().wait(timeout_s=600)
    assert run.state == "finished", run.status
    assert run.result["samples_lost"] == 0
    assert run.result["runs"][0]["source"] == "ma_dnn"


@pytest.mark.nightly
@pytest.mark.processes
def test_the_result_says_what_it_was(kdlab_home, elsewhere):
    run = experiment(*EC, "method.processes=false", "method.final=validation").start()
    run.wait(timeout_s=600)
    result = json.loads((run.path / "members/ec_dnn/seed0/result.json").read_text())
    assert result["workers"] == 3
    assert result["figures"]["iterations"] == result["steps"] - 4 * (result["steps"] // 12)
    assert result["last"] == result["best"]  # the student is the best on validation


RIVALS = {
    "diloco": "{type: train/aggregation/diloco, tau: 4}",
    "streaming_diloco": "{type: train/aggregation/streaming_diloco, tau: 4, fragments: 2}",
    "papa": "{type: train/aggregation/papa, tau: 4}",
    "easgd": "{type: train/aggregation/easgd, tau: 4}",
    "easgd_async": "{type: train/aggregation/easgd_async, tau: 4}",
    "bmuf": "{type: train/aggregation/bmuf, tau: 4}",
    "dart": "{type: train/aggregation/dart, tau: 4}",
    "soup": "{type: train/aggregation/soup}",
    "muloco": "{type: train/aggregation/muloco, tau: 4}",
    "codistillation": "{type: train/aggregation/codistillation, tau: 4}",
}


@pytest.mark.nightly
@pytest.mark.processes
def test_every_rival_trains_to_its_end(kdlab_home, elsewhere):
    """Side by side: a student, a global model and what travelled, of each."""
    compare = ", ".join(f"{name}: {{aggregation: {spec}}}" for name, spec in RIVALS.items())
    run = kdlab.load(
        "smoke/ensemble",
        f"method.compare={{{compare}}}",
        "method.processes=false",
        "train.epochs=3",
        "tracking.enabled=false",
    )
    run = run.start(lambda line: None).wait(timeout_s=600)
    rows = {row["source"]: row for row in run.result["runs"]}
    assert set(rows) == set(RIVALS)
    assert all(row["samples_lost"] == row["samples_repeated"] == 0 for row in rows.values())
    assert all(row["global_top1"] > 0 for row in rows.values())
    sent = {name: row["exchanged_mb"] for name, row in rows.items()}
    assert sent["soup"] < sent["dart"] < sent["diloco"]
    assert sent["streaming_diloco"] == pytest.approx(sent["diloco"], rel=0.2)
    for name in RIVALS:
        folder = run.path / "members" / name / "seed0"
        assert (folder / "student.safetensors").is_file()
        file = "ensemble.yaml" if name == "codistillation" else "global.safetensors"
        assert (folder / file).is_file()
