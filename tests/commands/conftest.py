"""Commands without a shell, and stand-ins for runs."""

import time

import pytest
from tests_support import hold

from kdlab import cli
from kdlab.config import yaml_text
from kdlab.config.home import write_json
from kdlab.events.log import EventLog
from kdlab.experiment.folder import RunFolder

RESULT = {
    "run_id": "r", "experiment": "small", "student_top1": 90.0, "teacher_top1": 95.0,
    "tracking_uri": None, "run_dir": "/runs/r", "status": "finished",
    "runs": [
        {"member": "none/seed0", "source": "none", "seed": 0, "student_top1": 90.0,
         "student_top5": 99.0, "student_top1_best": 91.0, "samples_per_second": 100.0,
         "samples_seen": 64, "samples_lost": 0, "samples_repeated": 0,
         "samples_rolled_back": 0, "wall_seconds": 2.0, "train_seconds": 1.0,
         "volume_max": None, "teachers": None, "global_top1": None, "more": {}},
    ],
    "costs": {},
}  # fmt: skip


@pytest.fixture
def typed(capsys, monkeypatch):
    """Call a command's `do` with the words; return exit code, stdout and stderr."""

    def run_it(module, *words):
        name = next(n for n, command in cli.COMMANDS.items() if command is module)
        code = module.do(cli.parser().parse_args([name, *words]))
        return code, *capsys.readouterr()

    return run_it


@pytest.fixture
def attached(monkeypatch):
    """Let `attach` of runs and sweeps return this handle; return the names it is asked for."""

    def put(handle):
        names = []
        asking = ("chaos", "control", "examine", "scale")
        places = [f"kdlab.commands.{name}.attach" for name in asking]
        for place in (*places, "kdlab.session.attach", "kdlab.tuning.attach_sweep"):
            monkeypatch.setattr(place, lambda name: names.append(name) or handle)
        return names

    return put


@pytest.fixture
def run_folder(elsewhere):
    """Make a run's folder in ./runs; this process holds one that is `running`."""

    holding = []

    def make(name="20260101-000000-aaaa", state="finished", spec=None, **facts):
        run = RunFolder(elsewhere / "runs" / name)
        run.path.mkdir(parents=True)
        tree = spec or {"student": {"type": "models/patch_net"}, "seeds": [0]}
        run.path.joinpath("spec.yaml").write_text(yaml_text.dump(tree))
        write_json(run.path / "components.json", {})
        EventLog(run.events).close()
        if state == "running":
            holding.append(hold(run))
        if state == "finished":
            facts.setdefault("result", RESULT | {"run_id": name, "run_dir": str(run.path)})
        run.write_status(state=state, created=time.time(), **facts)
        run.write_origin("small", "abc")
        return run

    return make
