"""A plan that steps do not bear out is changed between epochs (beyond the paper)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kdlab.events.blockwise import PlanChosen
from kdlab.events.log import select
from kdlab.experiment.folder import RunFolder

PAUSING = '''
from dataclasses import dataclass
from time import sleep

import kdlab
from torch import nn
from kdlab.models.cifar_resnet import ResNet
from kdlab.models.model import ModelSpec

@kdlab.register("models/pausing")
@dataclass(frozen=True, kw_only=True)
class Pausing(ModelSpec):
    """The smallest ResNet; its first two blocks take 40 ms whatever else the machine does."""

    def architecture(self, num_classes, in_chans):
        class Pause(nn.Module):
            def forward(self, x):
                sleep(0.04)
                return x

        net = ResNet(8, (4, 4, 8, 8), num_classes, in_chans)
        for block in (0, 1):
            net.blocks[block] = nn.Sequential(net.blocks[block], Pause())
        return net

cuts = ["blocks.0", "blocks.1"]
run = kdlab.load("smoke/blockwise", *sys.argv[1:], {
    "student": {"type": "models/pausing"},
    "method.teacher_cuts": cuts, "method.student_cuts": cuts,
    "tracking.enabled": False}).start().wait()
print(run.path)
'''


@pytest.mark.nightly
def test_a_plan_from_a_wrong_profile_is_changed_by_what_steps_take(elsewhere, tmp_path):
    """A profile that says the last block is nearly all of the work.

    Two blocks sleep, so that what is better does not depend on what else the machine does.
    After an epoch everybody goes on with a better plan, in the same processes; nothing is lost
    and nothing is trained twice.
    """
    (elsewhere / "pausing.py").write_text("import sys\n" + PAUSING)

    def run(*overrides):
        done = subprocess.run(
            [sys.executable, "pausing.py", "method.profile_s=0.5", *overrides],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return RunFolder(Path(done.stdout.splitlines()[-1]))

    profile = json.loads((run("train.epochs=1").path / "profile.json").read_text())
    for blocks in profile["types"].values():
        for number, block in enumerate(blocks):
            wrong = 50.0 if number == len(blocks) - 1 else 0.02
            for part in ("teacher_s", "student_s"):
                block[part] = {rows: wrong * s for rows, s in block[part].items()}
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(profile))
    folder = run(f"method.profile={wrong}", "method.plan=ahd", "train.epochs=3")
    begun, *changed = select(folder.events, PlanChosen)
    ends = [
        [stage["stop"] for stage in e.programme["plans"][0]["stages"]]
        for e in (begun, *changed)
    ]
    assert ends[0] != [1, 3]
    assert ends[-1] == [1, 3]  # a device for each of the two that sleep
    assert "by what steps took" in changed[0].table
    kept = json.loads((folder.path / "members/ahd/seed0/plan.json").read_text())
    assert kept["programme"] == changed[-1].programme
    result = folder.status().result
    assert result["samples_lost"] == result["samples_repeated"] == 0
    # Who is told not to keeps its plan.
    folder = run(
        f"method.profile={wrong}",
        "method.plan=ahd",
        "train.epochs=2",
        "method.replan=false",
    )
    assert len(list(select(folder.events, PlanChosen))) == 1
