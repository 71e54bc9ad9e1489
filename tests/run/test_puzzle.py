"""A student chosen among stand-ins that were distilled in one pipeline (Puzzle), as a run."""

import json

import pytest
import torch
from safetensors.torch import load_file

import kdlab
from kdlab.events.blockwise import BlocksChosen
from kdlab.events.log import select
from kdlab.models.exported import load_exported
from kdlab.train.result import MemberReport

CUTS = ["blocks.0", "blocks.1"]
LIBRARY = {
    "student": {
        "type": "models/block_library",
        "of": {"type": "models/cifar_resnet", "depth": 8, "width": [8, 8, 16, 16]},
        "cuts": CUTS,
        "variants": ["separable", "low_rank2", "linear", "skip"],
    },
    "method.teacher_cuts": CUTS,
    "method.profile_s": 0.5,
    "tracking.enabled": False,
}
# By parameters, not by time: what is chosen then does not depend on the machine.
SMALLER = {
    "method.choose": {"faster": None, "smaller": 2.0, "engine": "folded", "images": 64}
}


@pytest.mark.processes
def test_a_library_is_distilled_chosen_from_and_trained_as_a_whole(kdlab_home, elsewhere):
    more = {"method.fine_tune": {"epochs": 1, "batch": 32, "threads": 1}, "train.epochs": 1}
    run = kdlab.load("smoke/blockwise", LIBRARY | SMALLER | more).start(lambda line: None)
    run = run.wait(timeout_s=600)
    assert run.state == "finished", run.error
    (chosen,) = select(run.folder.events, BlocksChosen)
    folder = run.path / "members" / "tr" / "seed0"
    kept = json.loads((folder / "choice.json").read_text())
    assert [o["name"] for o in kept["chosen"]] == chosen.choices
    same = sum(o["parameters"] for o in kept["options"] if o["name"] == "same")
    taken = sum(o["parameters"] for o in kept["chosen"])
    assert taken <= same / 2
    assert all(abs(o["score"]) < 1e-6 for o in kept["options"] if o["name"] == "same")
    assert (folder / "choice.png").stat().st_size > 10_000
    assert "chosen" in chosen.table
    # The student is a network of these blocks and nothing else, and answers as one.
    report = MemberReport.read(folder)
    model = load_exported(report.model_path)
    assert sum(p.numel() for p in model.net.parameters()) == taken
    views = torch.zeros(2, *run.experiment.spec.data.load(lambda line: None).shape)
    assert model(views.to(torch.uint8)).shape == (2, 10)
    assert report.more["faster_than_teacher"] > 0
    assert report.distilled is not None
    result = run.result
    assert result["samples_lost"] == result["samples_repeated"] == 0


@pytest.mark.processes
def test_what_a_choice_cannot_be_is_found_before_or_said(kdlab_cli, elsewhere):
    words = [
        "student.type=models/block_library",
        "student.of={type: models/cifar_resnet, depth: 8, width: [8, 8, 16, 16]}",
        "student.cuts=[blocks.0, blocks.1]",
        "method.teacher_cuts=[blocks.0, blocks.1]",
    ]
    code, _, err = kdlab_cli("run", "smoke/blockwise", *words)
    assert code == 2
    assert "is a library of blocks without method.choose" in err
    code, _, err = kdlab_cli("run", "smoke/blockwise", "method.choose={faster: 2.0}")
    assert code == 2
    assert "is no library of blocks" in err
    assert "teacher_cuts: is empty" in err
    code, _, err = kdlab_cli(
        "run",
        "smoke/blockwise",
        *words,
        "method.choose={faster: 2.0}",
        "student.of.width=[4, 4, 8, 8]",
    )
    assert code == 2
    assert "student.of is another network than the teacher (width differ)" in err
    assert not (elsewhere / "runs").exists()


@pytest.mark.slow
@pytest.mark.processes
def test_a_budget_nothing_is_within_is_said(elsewhere):
    choose = {"faster": None, "smaller": 1e6, "engine": "folded", "images": 64}
    run = kdlab.load(
        "smoke/blockwise", LIBRARY | {"method.choose": choose, "train.epochs": 1}
    ).start(lambda line: None)
    run = run.wait(timeout_s=600)
    assert run.state == "failed"
    assert "No choice of blocks is smaller 1e+06" in str(run.error)
    assert "and the smallest have" in str(run.error)
    library = load_file(next(run.path.rglob("student.safetensors")))
    assert any(".variants.linear." in key for key in library)
