"""Settings that an ensemble experiment may have, and one member from its workers to its files."""

import json
from contextlib import contextmanager

import pytest

import kdlab
from kdlab.config import SpecError
from kdlab.data.watched import watched_rows
from kdlab.errors import BadInput
from kdlab.experiment.chaos_targets import OwnTargets
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.method import MemberTraining
from kdlab.experiment.setup import TrainingSetup
from kdlab.methods.ensemble import method as module
from kdlab.methods.ensemble.ensemble_run import EnsembleRun
from kdlab.methods.ensemble.model_workers import InProcessWorkers
from kdlab.methods.ensemble.settings import EnsembleSettings
from kdlab.methods.ensemble.variant import Variant
from kdlab.soft_labels.none import NoTeacher
from kdlab.train.aggregation.diloco import DiLoCo
from kdlab.train.aggregation.model_average import ModelAverage
from kdlab.train.aggregation.none import NoAggregation


def experiment(*overrides):
    return kdlab.load("smoke/ensemble", *overrides)


FAULTS = {
    "too_many_workers": (("method.workers=40",), "too few for 40 workers"),
    "tau_0": (("method.compare.ma_dnn.aggregation.tau=0",), "must be >= 1"),
    "mu": (("method.compare.ec_dnn.aggregation.compression.mu=1.5",), "mu"),
    "tau_too_long": (
        ("method.compare.ma_dnn.aggregation.tau=4000",),
        "no communication would happen",
    ),
    "p_too_long": (
        ("method.compare.ec_dnn.aggregation.compression.p_iterations=9999",),
        "longer than the whole training",
    ),
    "all_reduce": (
        ("method.compare={a: {aggregation: {type: train/aggregation/all_reduce}}}",),
        "local models are averaged",
    ),
    "aggregation_and_compare": (
        ("aggregation={type: train/aggregation/model_average}",),
        "has no effect with method.compare",
    ),
    "unlike": (
        (
            "method.models=[{type: models/patch_net, patch: 8}, "
            "{type: models/patch_net, patch: 4}, {type: models/patch_net, patch: 8}]",
        ),
        "networks differ",
    ),
    "few_models": (("method.models=[{type: models/patch_net}]",), "1 networks for 3"),
    "ema": (("train.ema=0.9",), "local models are reset to the global one"),
    "skewed": (
        ("method.workers=11", "method.shards={kind: dirichlet, concentration: 0.0001}"),
        "No deal of 240 images",
    ),
    "served_and_mu_1": (
        (
            "method.compare.ec_dnn.aggregation.compression.mu=1",
            "soft_labels={type: cluster/served, lt: 20, ut: 99}",
            "teacher={use: teachers/digits_tiny}",
            "teacher_pool={use: teacher_pools/local, engine: eager}",
        ),
        "give it mu below 1",
    ),
    "one_student": (
        (
            "method={type: methods/student}",
            "aggregation={type: train/aggregation/ensemble}",
        ),
        "method: {type: methods/ensemble} trains those",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_bad_input_is_found_before_anything_starts(kdlab_home, elsewhere, name):
    overrides, message = FAULTS[name]
    with pytest.raises((BadInput, SpecError)) as error:
        experiment(*overrides).check()
    assert message in str(error.value)
    assert not (elsewhere / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("method.start=own", "aggregation={type: train/aggregation/diloco}"),
            "needs equal initial weights",
        ),
        (
            ("method.workers=1", "aggregation={type: train/aggregation/codistillation}"),
            "codistillation needs 2",
        ),
        (
            (
                "aggregation={type: train/aggregation/streaming_diloco, tau: 200, fragments: 64}",
            ),
            "which 64 fragments do not divide",
        ),
        (
            ("method.start=own", "aggregation={type: train/aggregation/easgd_async}"),
            "easgd_async needs equal initial weights",
        ),
        (
            ("aggregation={type: train/aggregation/easgd_async, recipe: greedy}",),
            "aggregation.recipe",
        ),
        (
            (
                "aggregation={type: train/aggregation/easgd_async}",
                "method.models=[{type: models/patch_net}, {type: models/patch_net}, "
                "{type: models/nin}]",
            ),
            "averages weights, and the networks differ",
        ),
    ],
)
def test_what_a_rival_cannot_have_is_found_before_the_start(words, message):
    with pytest.raises(SpecError, match=message):
        kdlab.load("smoke/ensemble", "method.compare={}", *words)


def member_of(tmp_path, *overrides):
    """(training, events, blocks of chaos) of the only member of an experiment."""
    spec = experiment("method.compare={}", *overrides).spec
    events, blocks = [], []

    @contextmanager
    def chaos(pool, ranks):
        blocks.append(["begun", pool, ranks()])
        yield OwnTargets()
        blocks.append("ended")

    (member,) = spec.members()
    folder = tmp_path / "members" / member.name
    folder.mkdir(parents=True)
    training = MemberTraining(
        setup=TrainingSetup(spec),
        member=member,
        run=RunFolder(tmp_path),
        folder=folder,
        emit=events.append,
        pools=None,
        hosts=None,
        chaos=chaos,
    )
    return training, events, blocks


AVERAGED = (
    "method.workers=2",
    "method.processes=false",
    "method.looks=2",
    "aggregation={type: train/aggregation/model_average, tau: 3}",
    "train.epochs=1",
)


@pytest.mark.long
def test_a_member_is_trained_in_the_process_of_its_run(tmp_path):
    training, events, blocks = member_of(tmp_path, *AVERAGED, "method.final=validation")
    result = training.spec.method.train(training)
    assert blocks == [["begun", None, []], "ended"]
    assert result.workers == 2
    assert result.steps == 6
    assert result.last == result.best  # the student is the best on validation
    looks = [e.round for e in events if e.KIND == "errors_measured"]
    assert looks == [0, 1]
    watched = len(watched_rows(training.setup.data))
    assert [len(e.said) for e in events if e.KIND == "images_answered"] == [watched]
    for name in ("student", "global", "best"):
        assert (training.folder / f"{name}.safetensors").is_file()
    for picture in ("curves.png", "histograms.png"):
        assert (training.folder / picture).stat().st_size > 5000
    assert json.loads((training.folder / "direction.json").read_text())["round"] == 2


@pytest.mark.long
def test_processes_are_asked_for_unless_the_spec_says_otherwise(tmp_path, monkeypatch):
    """Only processes can be hit by chaos."""
    hang_times = []

    class FakeProcesses(InProcessWorkers):
        """Takes the place of the processes and records their time limit."""

        def __init__(self, training, hang_s):
            hang_times.append(hang_s)
            run = EnsembleRun(training.spec.method, training.setup, training.member)
            super().__init__(
                lambda number: run.worker(number, training.folder, training.emit),
                lambda worker: run.source(worker, "run", None),
            )

        def targets(self):
            return [f"worker-{k}" for k in self.workers]

    monkeypatch.setattr(module, "Processes", FakeProcesses)
    words = (*AVERAGED, "method.processes=true", "method.hang_s=7")
    training, _, blocks = member_of(tmp_path, *words)
    training.spec.method.train(training)
    assert hang_times == [7.0]
    assert blocks == [["begun", None, []], "ended"]


def test_an_experiment_without_names_has_the_papers():
    method = EnsembleSettings()
    assert list(method.variants(ModelAverage(tau=4))) == ["ma_dnn"]
    assert list(method.variants(NoAggregation())) == ["e_dnn"]
    assert Variant(aggregation=DiLoCo()).called(2) == "diloco"
    assert Variant(aggregation=DiLoCo(), workers=1).called(2) == "s_dnn"
    assert list(EnsembleSettings(workers=1).variants(NoAggregation())) == ["s_dnn"]
    spec = experiment().spec
    assert list(spec.method.compared(spec)) == ["s_dnn", "e_dnn", "ma_dnn", "ec_dnn"]
    assert set(spec.method.compared(spec).values()) == {NoTeacher()}
    assert spec.method.has_ranks(spec)


@pytest.mark.long
def test_two_or_more_are_drawn_side_by_side(tmp_path):
    training, _, _ = member_of(tmp_path, *AVERAGED)
    method, run = training.spec.method, training.run
    method.train(training)
    assert method.summarise(training.spec, run) == []  # a single variant: no comparison
    two = experiment(
        "method.compare={a: {aggregation: {type: train/aggregation/none}}, "
        "b: {aggregation: {type: train/aggregation/none}}}"
    ).spec
    for name in ("a", "b"):
        folder = run.member(f"{name}/seed0")
        folder.mkdir(parents=True)
        record = (training.folder / "direction.json").read_text()
        (folder / "direction.json").write_text(record)
    picture, table = two.method.summarise(two, run)
    assert picture.stat().st_size > 5000
    rows = [row for row in table.read_text().splitlines() if row.startswith("|")]
    assert [row.split("|")[1].strip() for row in rows[2:]] == ["a", "b"]
