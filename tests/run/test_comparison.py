"""Runs compared: spec differences, curves, means over seeds; in words, HTML and MLflow."""

import html
import json

import pytest
import torch
from mlflow import MlflowClient

import kdlab
from kdlab.errors import BadInput
from kdlab.report import page
from kdlab.report.table import NO_SPEEDS

pytestmark = pytest.mark.processes("whoever is first makes the runs that all read")


def test_two_runs_in_words_html_and_mlflow(of_two_seeds, of_another_rate):
    two = [of_two_seeds, of_another_rate]
    comparison = kdlab.compare(*two)
    differ = dict(comparison.differences())
    assert differ["train.lr"][1] == 0.2
    assert set(differ) == {"train.lr", "seeds"}
    rows = comparison.outcomes()
    assert len(rows) == 2
    assert "±" in rows[0]["top-1 %"]
    assert "±" not in rows[1]["top-1 %"]
    assert "train.lr" in str(comparison)
    assert "N-training" in str(comparison)
    across = {(panel.title, panel.across) for panel in comparison.curves()}
    assert {("loss on labels", "seconds"), ("loss on labels", "samples")} <= across
    assert all(len(panel.curves) == 3 for panel in comparison.curves())  # trainings
    shown = comparison._repr_html_()
    assert "Differences between the specs" in shown
    assert "data:image/svg+xml" in shown

    ids = comparison.log()
    client = MlflowClient(two[0].result["tracking_uri"])
    for run in ids:
        names = [artifact.path for artifact in client.list_artifacts(run)]
        assert {"comparison.html", "overview.html", "overview.svg"} <= set(names)
    (link,) = comparison.links()
    members = json.loads(link.partition("runs=")[2].partition("&")[0])
    assert len(members) == 3  # two seeds, and the other run
    assert all(client.get_run(run).info.status == "FINISHED" for run in members)

    note = client.get_run(ids[0]).data.tags["mlflow.note.content"]
    assert r"Loss \<b\>low\</b\> \| high" in note
    assert "| training | top-1 % |" in note
    assert f"![curves](get-artifact?path=overview.svg&run_uuid={ids[0]})" in note


def test_what_a_run_told_mlflow_while_it_went_on_is_compared(taught):
    comparison = kdlab.compare(taught)
    (link,) = comparison.links()
    members = json.loads(link.partition("runs=")[2].partition("&")[0])
    client = MlflowClient(taught.result["tracking_uri"])
    assert len(members) == 2
    assert all(client.get_run(run).info.status == "FINISHED" for run in members)
    state = json.loads((taught.path / "tracking.json").read_text())
    names = [artifact.path for artifact in client.list_artifacts(state["runs"][""])]
    assert {"overview.html", "overview.svg", "examination.html"} <= set(names)


def test_a_comparison_ends_with_the_verdict_everywhere(taught, answer):
    verdict = taught.result["verdict"]
    sentence = verdict["sentence"]
    (plain, distilled) = (row["student_top1"] for row in taught.result["runs"])
    assert verdict["gained"] == pytest.approx(distilled - plain)
    shared = [row["shares_cores"] for row in taught.result["runs"]]
    assert shared == [False, not torch.cuda.is_available()]
    for shown in (taught.table(), str(kdlab.compare(taught))):
        assert (NO_SPEEDS in shown) is any(shared)
        assert ("samples/s" in shown) is not any(shared)
    assert sentence.startswith(f"With its teacher {distilled:.1f} %, alone {plain:.1f} %: ")
    assert " ".join(taught.table().split()).endswith(sentence)
    assert answer("attach", taught.id)["verdict"] == verdict
    assert answer("runs", "--compare", taught.id)["verdicts"] == [sentence]
    assert html.escape(sentence) in kdlab.compare(taught).page()
    assert html.escape(sentence) in taught.result._repr_html_()

    state = json.loads((taught.path / "tracking.json").read_text())
    data = MlflowClient(taught.result["tracking_uri"]).get_run(state["runs"][""]).data
    assert data.tags["kdlab.verdict"] == sentence
    assert data.metrics["test/gained_with_teacher"] == pytest.approx(verdict["gained"])
    assert data.metrics["test/plain_top1"] == pytest.approx(plain)
    assert data.metrics["test/top1"] == pytest.approx(distilled)
    interval = [data.metrics[f"test/gained_{end}"] for end in ("low", "high")]
    assert interval == pytest.approx([verdict["low"], verdict["high"]])
    assert data.tags["mlflow.note.content"].startswith(page.markdown(sentence))
    assert "takes" in data.tags["mlflow.note.content"]  # what `kdlab export` does


def test_the_better_on_validation_predicts(taught):
    prediction = taught.predict(taught.test_images(2))
    rows = {row["member"]: row["validation_top1"] for row in taught.result["runs"]}
    best = max(rows, key=lambda name: (rows[name], name.startswith("in_process")))
    assert prediction.taken.startswith(f"taken: {best}, {rows[best]:.1f} % on validation; ")
    assert prediction.taken in repr(prediction)
    assert html.escape(prediction.taken) in prediction._repr_html_()
    assert taught.predict(taught.test_images(2), member=best).taken == ""


def test_what_is_not_in_mlflow_is_not_logged(of_two_seeds, copied):
    run = copied(of_two_seeds)
    comparison = kdlab.compare(run)
    assert comparison.links() == []
    with pytest.raises(BadInput, match="in MLflow yet"):
        comparison.log()
    (run.path / "result.json").unlink()  # as of a run that failed later
    assert "±" in kdlab.compare(run).outcomes()[0]["top-1 %"]


def test_one_run_is_compared_with_itself_only_when_it_did_several_things(
    of_two_seeds, of_another_rate
):
    assert "N-training" in str(kdlab.compare(of_two_seeds))
    with pytest.raises(BadInput, match="two runs or more"):
        kdlab.compare(of_another_rate)
    with pytest.raises(BadInput, match="two runs or more"):
        kdlab.compare()
