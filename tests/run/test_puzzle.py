"""A student chosen among stand-ins that were distilled in one pipeline (Puzzle), as a run."""

import json

import pytest
import torch
from safetensors.torch import load_file

import kdlab
from benchmarks.reproduce.over_time import curves_of
from kdlab.errors import NotFoundError
from kdlab.events.blockwise import BlocksChosen
from kdlab.events.log import select
from kdlab.models.exported import load_exported
from kdlab.run.outputs.student_files import student_file
from kdlab.train.result import MemberResult

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
    "method.type": "methods/puzzle",
    "method.faster": None,
    "method.smaller": 2.0,
    "method.engine": "folded",
    "method.images": 64,
}


@pytest.mark.parametrize("trains_on", [True, False])
def test_a_library_is_distilled_chosen_from_and_trained_as_a_whole(
    wherever, trains_on, kdlab_home, elsewhere
):
    more = {"train.epochs": 1}
    if trains_on:
        more["method.fine_tune"] = {"epochs": 1, "batch": 32, "threads": 1}
    run = kdlab.load("smoke/blockwise", LIBRARY | SMALLER | more).start(lambda line: None)
    run = run.wait(timeout_s=600)
    assert run.state == "finished", run.status
    (chosen,) = select(run.folder.events, BlocksChosen)
    folder = run.path / "members" / "tr" / "seed0"
    choice = json.loads((folder / "choice.json").read_text())
    assert [o["name"] for o in choice["chosen"]] == chosen.choices
    same = sum(o["parameters"] for o in choice["options"] if o["name"] == "same")
    taken = sum(o["parameters"] for o in choice["chosen"])
    assert taken <= same / 2
    assert all(abs(o["score"]) < 1e-6 for o in choice["options"] if o["name"] == "same")
    assert (folder / "choice.png").stat().st_size > 10_000
    assert "chosen" in chosen.table
    # The student is a network of these blocks and nothing else, and answers as one.
    # Every stand-in was trained on its teacher's inputs, and its norms remember these.
    library = load_file(folder / "student.safetensors")
    means = [v for k, v in library.items() if k.endswith("running_mean")]
    assert len(means) > 10
    assert all(float(mean.abs().max()) > 0 for mean in means)
    report = MemberResult.read(folder)
    # What is exported without a word is the student in the end, not what it was made of.
    exported, _ = student_file(run.folder, None, best=False)
    assert exported.parent.name == "whole"
    assert load_file(exported).keys() == load_file(report.model_path).keys()
    assert student_file(run.folder, None, best=True)[0].is_file()
    assert "models/chosen_blocks" in (folder / "model_card.md").read_text()
    model = load_exported(report.model_path)
    assert sum(p.numel() for p in model.net.parameters()) == taken
    views = torch.zeros(2, 1, 8, 8)
    assert model(views.to(torch.uint8)).shape == (2, 10)
    (curve,) = curves_of(run, None).get("tr", [[]])
    seconds = [at for at, _ in curve]
    assert len(seconds) == trains_on
    assert all(at > report.train_seconds for at in seconds)  # behind the library's training
    # Until the whole is there, what it is made of is no student.
    (folder / "whole").rename(elsewhere / "aside")
    with pytest.raises(NotFoundError, match="no finished member"):
        student_file(run.folder, None, best=False)
    (elsewhere / "aside").rename(folder / "whole")
    assert report.more["faster_than_teacher"] > 0
    assert (report.distilled is not None) == trains_on
    result = run.result
    assert result["samples_lost"] == result["samples_repeated"] == 0


@pytest.mark.long
def test_what_a_choice_cannot_be_is_found_before_or_said(kdlab_cli, elsewhere):
    words = [
        "student.type=models/block_library",
        "student.of={type: models/cifar_resnet, depth: 8, width: [8, 8, 16, 16]}",
        "student.cuts=[blocks.0, blocks.1]",
        "method.teacher_cuts=[blocks.0, blocks.1]",
    ]
    student_cuts = 'method.student_cuts=["0", "1"]'
    code, _, err = kdlab_cli("run", "smoke/blockwise", *words, student_cuts)
    assert code == 2
    assert "which only methods/puzzle can train" in err
    chosen = "method.type=methods/puzzle"
    code, _, err = kdlab_cli("run", "smoke/blockwise", chosen)
    assert code == 2
    assert "teacher_cuts: is empty" in err
    code, _, err = kdlab_cli("run", "smoke/blockwise", words[3], chosen)
    assert code == 2
    assert "no library of blocks" in err
    code, _, err = kdlab_cli(
        "run",
        "smoke/blockwise",
        *words,
        chosen,
        "student.of.width=[4, 4, 8, 8]",
    )
    assert code == 2
    assert "student.of is another network than the teacher (width differ)" in err
    code, _, err = kdlab_cli(
        *("run", "smoke/blockwise", *words, chosen),
        *("method.faster=null", "method.smaller=100000"),
    )
    assert code == 2
    assert "with the smallest stand-ins the student has" in err
    more = [chosen, "train.clip_grad_norm=1.0"]
    code, _, err = kdlab_cli("run", "smoke/blockwise", *words, *more)
    assert code == 2
    assert "would be clipped together" in err
    code, _, err = kdlab_cli("run", "smoke/in_process", *words[:3])
    assert code == 2
    assert "which only methods/puzzle can train" in err
    assert not (elsewhere / "runs").exists()
