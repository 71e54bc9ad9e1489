"""`import kdlab` and `kdlab list` answer at once."""

import subprocess
import sys

import pytest
from rules import house

HEAVY = {"torch", "torchvision", "timm", "mlflow", "distributed", "dask", "optuna",
         "ipywidgets", "anywidget", "sklearn", "matplotlib", "omegaconf", "rich"}  # fmt: skip


def modules_after(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split("\n")[-2].split())


@pytest.mark.processes
def test_import_brings_no_heavy_library():
    assert not HEAVY & modules_after("import kdlab")


@pytest.mark.processes
def test_listing_imports_no_component(elsewhere):
    loaded = modules_after("from kdlab.cli import main; main(['list'])")
    assert not HEAVY & loaded
    assert "kdlab.losses.hinton" not in loaded


def test_the_public_names_exist_and_are_documented():
    import kdlab

    for name in kdlab.__all__:
        assert getattr(kdlab, name).__doc__, name


def test_a_notebook_shows_the_message_and_not_thirty_frames():
    from kdlab.config import Fault
    from kdlab.errors import SpecError

    (line,) = SpecError([Fault("train.x", "is wrong", "override")])._render_traceback_()
    assert line.startswith("SpecError: 1 fault")


@pytest.mark.processes
def test_the_reader_needs_no_torch():
    """The DistilReader's process starts in a second, and holds 100 MB less."""
    assert "torch" not in modules_after("import kdlab.cluster.reader.student_reader")


@pytest.mark.processes
def test_the_scheduler_needs_no_torch():
    assert "torch" not in modules_after(
        "import kdlab.cluster.coordination.scheduler_process"
    )


@pytest.mark.processes
def test_a_run_loads_what_it_may_not_need_only_when_it_does():
    """timm and torchvision take 2 s, matplotlib and MLflow 1 s each, of every process."""
    loaded = modules_after(
        "import kdlab.run.process.run_process, kdlab.methods.blockwise.rank"
    )
    assert not {"timm", "torchvision", "matplotlib", "mlflow", "torch._dynamo"} & loaded


def test_no_circle_of_imports():
    """When modules run; circles that types close are in `budgets.toml`."""
    assert not house.circles(types=False)
