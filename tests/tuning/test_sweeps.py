"""Real sweeps in processes of their own, and what may happen to them."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import optuna
import psutil
import pytest
import yaml
from optuna.trial import TrialState
from small_sweeps import SIMULATED, TRAINED
from tests_support import until

import kdlab
from kdlab.cluster.transport.security import load_credentials
from kdlab.cluster.transport.wire import ask
from kdlab.errors import BadInput, RunFailed, RunStopped
from kdlab.events.log import select
from kdlab.experiment.folder import RunFolder
from kdlab.tuning import attach_sweep

KEYS = {
    "study",
    "best",
    "confirmed",
    "trials",
    "driver_ms_per_trial",
    "sweep_dir",
    "status",
}


def counted(sweep):
    """States of trials; those that were tried again left out."""
    trials = sweep.study.trials
    again = {t.user_attrs.get("retry_of") for t in trials}
    return [t.state for t in trials if t.number not in again]


def values_of(sweep):
    """Values of the trials that have ended well, by number."""
    return {
        t.number: t.values for t in sweep.study.trials if t.state == TrialState.COMPLETE
    }


def workers(sweep):
    """Processes that carry out trials."""
    return [c for c in sweep.folder.family()[1:] if "kdlab.tuning.trial_worker" in words(c)]


def words(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return ""


@pytest.mark.slow("a sweep and its workers, each a Python with torch, twice")
def test_a_killed_worker_and_a_stop_lose_no_trial(sweeps):
    """The command continues the sweep; a trial's value is the mean of its seeds."""
    small = {"overrides": {"train.epochs": 8}, "seeds": [3, 4], "trials": 3, "jobs": 2}
    sweep = sweeps(TRAINED, **small)
    until(lambda: list(select(sweep.folder.events, "trial_started")))
    until(lambda: workers(sweep))[0].kill()
    until(lambda: list(select(sweep.folder.events, "local_model_lost")))
    sweep.stop()
    sweep.wait(timeout_s=600)
    assert sweep.state == "stopped"
    with pytest.raises(RunStopped, match=r"Continue with"):
        _ = sweep.result
    assert not workers(sweep)
    sweep = sweeps(TRAINED, **small).wait(timeout_s=600)
    assert sweep.state == "finished", sweep.status.error
    assert counted(sweep) == [TrialState.COMPLETE] * 3
    best = sweep.result["best"]
    rows = RunFolder(Path(best["run_dir"])).raw_status().result["runs"]
    each = [row["validation_top1"] for row in rows]
    assert len(each) == 2
    assert best["values"]["validation_top1"] == pytest.approx(sum(each) / 2)


@pytest.mark.nightly
def test_a_simulated_sweep(sweeps):
    sweep = sweeps(SIMULATED).wait(timeout_s=600)
    result = sweep.result
    assert set(result) >= KEYS
    assert result["trials"]["complete"] == 12
    best = result["best"]["metrics"]
    assert best["of_n_training"] >= 0.9
    assert all(
        row.values["teachers"] >= best["teachers"] for row in sweep.rows() if row.feasible
    )
    card = yaml.safe_load((sweep.path / "best/registry/simulations/small.yaml").read_text())
    assert card["cases"][0]["teachers"] == best["teachers"]
    assert "teachers" in sweep.table()
    assert "data:image/svg+xml" in sweep._repr_html_()
    assert {"history.png", "pareto.png"} <= {p.name for p in sweep.pictures()}


@pytest.mark.nightly
def test_the_best_of_an_earlier_sweep_is_tried_first(sweeps):
    first = sweeps(SIMULATED).wait(timeout_s=600).result
    warm = {"study": "small", "best": 2}
    wider = SIMULATED["space"] | {"per_teacher": {"low": 1, "high": 4}}
    again = sweeps(SIMULATED, "again", space=wider, warm_start=warm, trials=5)
    rows = again.wait(timeout_s=600).rows()
    (best, _) = [row for row in rows if row.why == "of an earlier sweep"]
    assert best.set == first["best"]["set"] | {"per_teacher": 2}  # the card's own
    assert again.result["trials"]["complete"] == 5
    narrow = SIMULATED["space"] | {"lt": {"low": 100, "high": 200}}
    with pytest.raises(BadInput, match=r"(?s)No setting of the sweep small.*lt is "):
        sweeps(SIMULATED, "other", space=narrow, warm_start=warm)
    with pytest.raises(kdlab.KdlabError, match=r"no sweep .smalls..*Nearest: small"):
        sweeps(SIMULATED, "other", warm_start={"study": "smalls"})


@pytest.mark.nightly
def test_a_sweep_finds_confirms_and_keeps_the_best(sweeps, elsewhere):
    seeds = {"confirm": {"seeds": [11, 12]}}
    tracked = {"tracking": {"enabled": True}}
    sweep = sweeps(
        TRAINED, pruner={"name": "median", "n_startup_trials": 2}, **seeds, **tracked
    )
    sweep.wait(timeout_s=600)
    result = sweep.result
    best = result["best"]
    assert best["values"]["validation_top1"] == max(v[0] for v in values_of(sweep).values())
    again = result["confirmed"]
    assert len(again["best"]["values"]) == len(again["as_it_is"]["values"]) == 2
    assert again["optimistic"] == best["values"]["validation_top1"]
    saved = yaml.safe_load((sweep.path / "best/configs/small.yaml").read_text())
    assert saved["train"]["lr"] == best["set"]["train.lr"]
    assert {p.parent.name for p in sweep.save("tuned")} == {"configs", "train"}
    assert (
        kdlab.load("tuned").resolved["train"]["momentum"] == best["set"]["train.momentum"]
    )
    with pytest.raises(BadInput, match=r"exists already"):
        sweep.save("tuned")
    runs = {
        p.parent.parent.parent.parent for p in sweep.path.glob("trials/*/**/*.safetensors")
    }
    assert runs == {type(sweep.path)(best["run_dir"])}  # the weights of the others are gone
    in_mlflow(result, sweep)


def in_mlflow(result, sweep):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=result["tracking_uri"])
    (experiment,) = [e for e in client.search_experiments() if e.name == "sweeps/small"]
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
    children = [
        r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id
    ]
    trials = [r for r in children if "kdlab.trial" in r.data.tags]
    assert len(trials) == len(counted(sweep))
    confirming = [r for r in children if r not in trials]
    names = {r.info.run_name for r in confirming}
    assert names == {
        *("confirmed best · seed 11", "confirmed best · seed 12"),
        *("as it is, confirmed · seed 11", "as it is, confirmed · seed 12"),
    }
    assert all(r.info.status == "FINISHED" for r in confirming)
    of_best = [r for r in confirming if r.data.tags["kdlab.confirms"] == "best"]
    values = [r.data.metrics["learning/validation_top1"] for r in of_best]
    # The last of each training, as result and curve have it.
    assert sorted(values) == pytest.approx(sorted(result["confirmed"]["best"]["values"]))
    (best,) = [r for r in children if r.data.tags.get("kdlab.best")]
    assert int(best.data.tags["kdlab.trial"]) == result["best"]["number"]
    assert (
        parent.data.metrics["best/validation_top1"]
        == result["best"]["values"]["validation_top1"]
    )
    assert "history.png" in {f.path for f in client.list_artifacts(parent.info.run_id)}
    assert best.data.metrics["learning/validation_top1"] > 0  # its own curve


MANY = {"trials": 60, "overrides": {"steps": 60}, "jobs": 2}


@pytest.mark.nightly
def test_a_driver_killed_at_any_moment_loses_nothing(sweeps):
    """Ended trials keep their values, running ones are tried again, none is left out."""
    chance, known = random.Random(5), {}
    for _ in range(6):
        known = known_after_a_kill(sweeps, known, chance.uniform(0, 0.4))
    sweep = sweeps(SIMULATED, **MANY).wait(timeout_s=600)
    assert sweep.result["trials"]["complete"] == 60
    assert sweep.result["trials"]["tried_again"] >= 1
    assert {n: values_of(sweep)[n] for n in known} == known
    assert len(counted(sweep)) == 60


def known_after_a_kill(sweeps, known, seconds):
    """Continue the sweep until one more trial has ended, then kill it; return all values."""
    sweep = sweeps(SIMULATED, **MANY)
    until(
        lambda: (
            sweep.state in ("lost", "failed", "finished")
            or len(list_of(sweep)) > len(known)
        )
    )
    time.sleep(seconds)  # the moment of the kill
    sweep.kill()
    until(lambda: sweep.state in ("stopped", "finished"))
    now = list_of(sweep)
    assert {n: now[n] for n in known} == known
    return now


def list_of(sweep):
    try:
        return values_of(sweep)
    except (kdlab.KdlabError, KeyError):
        return {}


@pytest.mark.nightly
def test_a_full_disk_loses_no_trial(sweeps):
    """The journal cannot grow; with room again the same command goes on."""
    sweep = sweeps(SIMULATED, **MANY | {"trials": 2000})
    until(lambda: len(list_of(sweep)) > 5)
    journal = sweep.path / "study.journal"
    process = until(sweep.folder.process)
    process.rlimit(psutil.RLIMIT_FSIZE, (journal.stat().st_size + 700, -1))
    until(lambda: sweep.state in ("failed", "lost", "finished"))
    assert "The disk did not take" in sweep.status.error
    with pytest.raises(RunFailed, match=r"kdlab sweep .*--study small"):
        _ = sweep.result
    known = values_of(sweep)
    assert len(known) > 5
    sweep = sweeps(SIMULATED, **MANY).wait(timeout_s=600)
    assert sweep.result["trials"]["complete"] == 60
    assert {n: values_of(sweep)[n] for n in known} == known


@pytest.mark.nightly
def test_a_full_disk_of_a_worker_ends_the_sweep_and_no_trial(sweeps):
    """Its weights cannot be written: that is no fault of the trial."""
    long = {"overrides": {"train.epochs": 12}, "trials": 4, "jobs": 1}
    sweep = sweeps(TRAINED, **long)
    until(lambda: list(select(sweep.folder.events, "trial_started")))
    until(lambda: workers(sweep))[0].rlimit(psutil.RLIMIT_FSIZE, (3000, -1))
    until(lambda: sweep.state in ("failed", "lost", "finished"))
    assert "The disk did not take" in sweep.status.error
    assert TrialState.FAIL not in counted(sweep)
    sweep = sweeps(TRAINED, **long).wait(timeout_s=600)
    assert counted(sweep) == [TrialState.COMPLETE] * 4


@pytest.mark.nightly
def test_sqlite_and_a_time_limit(sweeps):
    limits = {"storage": "sqlite", "time_limit_s": 3.0, "trials": 5000}
    sweep = sweeps(SIMULATED, **limits).wait(timeout_s=600)
    result = sweep.result
    assert result["ended_early"] == "the time limit of 3 s"
    assert 0 < result["trials"]["complete"] < 5000
    url = f"sqlite:///{result['storage']}"  # as optuna-dashboard opens it
    (known,) = optuna.get_all_study_summaries(url)
    assert known.n_trials == result["trials"]["total"]


@pytest.mark.nightly
def test_a_trial_of_several_seeds_is_their_mean(sweeps):
    sweep = sweeps(TRAINED, seeds=[3, 4], trials=1).wait(timeout_s=600)
    run = RunFolder(sweep.path / "trials/small-0000")
    each = [row["validation_top1"] for row in run.raw_status().result["runs"]]
    assert len(each) == 2
    assert sweep.result["best"]["values"]["validation_top1"] == pytest.approx(sum(each) / 2)


@pytest.mark.nightly
def test_a_killed_worker_costs_its_trial_alone(sweeps):
    sweep = sweeps(TRAINED, overrides={"train.epochs": 12}, trials=6, jobs=2)
    until(lambda: list(select(sweep.folder.events, "trial_started")))
    victim = until(lambda: workers(sweep))[0]
    victim.kill()
    sweep.wait(timeout_s=600)
    assert list(select(sweep.folder.events, "local_model_lost"))
    assert counted(sweep) == [TrialState.COMPLETE] * 6


@pytest.mark.nightly
def test_trials_on_a_dask_cluster_survive_the_loss_of_a_machine(
    sweeps, two_workers, monkeypatch
):
    address, machines = two_workers
    monkeypatch.setenv("KDLAB_ADDRESSES", address)
    sweep = sweeps(
        TRAINED,
        overrides={"train.epochs": 12},
        trials=6,
        jobs=2,
        workers={"address": address, "insecure": True},
    )
    until(lambda: len(list(select(sweep.folder.events, "trial_done"))) > 1)
    machines[0].kill()
    sweep.wait(timeout_s=600)
    assert sweep.state == "finished", sweep.status.error
    assert counted(sweep) == [TrialState.COMPLETE] * 6
    assert list(select(sweep.folder.events, "local_model_lost"))


@pytest.mark.nightly
def test_ctrl_c_ends_gracefully_and_the_same_command_goes_on(sweeps):
    long = {"overrides": {"train.epochs": 40}, "trials": 4, "jobs": 2}
    sweep = sweeps(TRAINED, **long)
    until(lambda: list(select(sweep.folder.events, "trial_started")))
    sweep.stop()
    sweep.wait(timeout_s=600)
    assert sweep.state == "stopped"
    with pytest.raises(RunStopped, match=r"Continue with"):
        _ = sweep.result
    assert not workers(sweep)
    sweep = sweeps(TRAINED, **long).wait(timeout_s=600)
    assert sweep.state == "finished", sweep.status.error
    assert counted(sweep) == [TrialState.COMPLETE] * 4
    assert attach_sweep("small").result == sweep.result


@pytest.mark.nightly
def test_failed_trials_are_kept_with_their_error(sweeps):
    """A batch that the pool's upper threshold cannot hold is no spec; the search goes on."""
    batches = {"train.batch": {"choices": [16, 4096]}}
    overrides = {"soft_labels": {"type": "cluster/served", "ut": 512}, "train.epochs": 1}
    sweep = sweeps(
        TRAINED,
        experiment="smoke/served",
        overrides=overrides,
        space=batches,
        sampler={"name": "grid"},
        defaults=False,
    ).wait(timeout_s=600)
    assert sorted(s.name for s in counted(sweep)) == ["COMPLETE", "FAIL"]
    (failed,) = [row for row in sweep.rows() if row.state == "fail"]
    assert "must hold more than one" in failed.error
    assert "soft_labels.ut: is 512" in sweep.table()


@pytest.mark.nightly
def test_trials_share_one_pool_and_a_pruned_one_gives_its_teachers_back(sweeps):
    sweep = sweeps(
        TRAINED,
        experiment="smoke/served",
        overrides={"train.epochs": 300, "soft_labels.at_most": 1},
        pruner={"name": "threshold", "lower": 101.0, "n_warmup_steps": 2},
        trials=12,
        defaults=False,
    )
    (ready,) = until(lambda: list(select(sweep.folder.events, "pool_ready")))
    until(lambda: list(select(sweep.folder.events, "trial_started")))
    tls = load_credentials(ready.address)
    until(lambda: ask(ready.address, "kdlab_status", tls=tls)["students"])
    (first, *_) = until(lambda: list(select(sweep.folder.events, "trial_stopping")))
    name = f"small-{first.number:04d}/served/seed0"
    until(lambda: name not in ask(ready.address, "kdlab_status", tls=tls)["students"])
    assert sweep.state == "running"  # the others are still to come
    sweep.wait(timeout_s=600)
    assert counted(sweep) == [TrialState.PRUNED] * 12
    assert len(list(select(sweep.folder.events, "pool_starting"))) == 1
    assert "No trial completed" in sweep.status.error


@pytest.mark.nightly
def test_a_running_sweep_is_not_started_again(sweeps):
    sweep = sweeps(SIMULATED, trials=200, overrides={"steps": 400})
    until(lambda: sweep.state == "running")
    with pytest.raises(BadInput, match=r"already running"):
        sweeps(SIMULATED, trials=200, overrides={"steps": 400})
    sweep.stop()
    sweep.wait(timeout_s=600)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"space": {"train.momentun": {"low": 0, "high": 1}}}, "Nearest: train.momentum"),
        ({"objectives": [{"metric": "speed"}]}, "All: validation_top1"),
        ({"sampler": {"name": "tpe", "n_start": 1}}, "Nearest: n_startup_trials"),
    ],
)
def test_bad_input_ends_with_2_before_anything_starts(elsewhere, content, words):
    path = elsewhere / "bad.yaml"
    path.write_text(yaml.safe_dump(TRAINED | content))
    done = command(str(path))
    assert done.returncode == 2
    assert words in done.stderr
    assert not (elsewhere / "runs").exists()


@pytest.mark.nightly
def test_an_unknown_sweep_names_the_nearest(elsewhere):
    done = command("quickstar")
    assert done.returncode == 2
    assert "Nearest: quickstart" in done.stderr


@pytest.mark.processes("the command, its sweep and a worker: each a Python of its own")
def test_the_command_ends_with_one_object(kdlab_home, elsewhere, kdlab_cli):
    """A whole sweep of simulations, as people start it."""
    few = {key: SIMULATED["space"][key] for key in ("cases.0.teachers", "lt")}
    path = elsewhere / "small.yaml"
    path.write_text(yaml.safe_dump(SIMULATED | {"space": few}))
    done = command(str(path), "--json", "--trials", "5", "--jobs", "1", "--study", "mine")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) >= KEYS
    assert result["study"] == "mine"
    assert result["trials"]["total"] == 5
    changed = elsewhere / "other.yaml"
    changed.write_text(yaml.safe_dump(SIMULATED | {"overrides": {"steps": 33}}))
    code, _, err = kdlab_cli("sweep", str(changed), "--study", "mine")
    assert code == 2
    assert "another sweep" in err
    assert RunFolder(elsewhere / "runs/sweeps/mine").raw_status().state == "finished"


def command(*words):
    return subprocess.run(
        [sys.executable, "-m", "kdlab", "sweep", *words],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
