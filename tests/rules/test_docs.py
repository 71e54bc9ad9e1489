"""Docs are run: shell blocks name real commands, Python blocks execute, links exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import markdown
import pytest
from tests_support import run_folders

from kdlab.cli import parser
from kdlab.experiment.folder import RunFolder
from kdlab.run import load
from kdlab.run.experiment import Experiment
from kdlab.run.handle.run import Run
from kdlab.run.preflight import preflight

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)(?: .*)?\n(.*?)^```", re.M | re.S)


def blocks(page, language):
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_kdlab_command_in_the_docs_is_accepted(page):
    for block in blocks(page, "sh"):
        for line in block.splitlines():
            command = line.split("#")[0].strip()
            if not command.startswith("kdlab "):
                continue
            words = shlex.split(command)[1:]
            parser().parse_args(words)  # exits when the command line is wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_lists_and_tables_are_no_part_of_a_paragraph(page):
    """Items behind a paragraph of fewer than four spaces were printed as running text."""
    html = markdown.markdown(page.read_text(), extensions=["tables", "fenced_code"])
    paragraphs = re.findall(r"<p>(.*?)</p>", html, re.S)
    assert [p for p in paragraphs if re.search(r"\n\s*(-|\d+\.|\|) ", p)] == []


NEEDS = ("10.0.0.1", "birds.zip", "redis://")  # what a reader has and a test does not


def documented_runs():
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.splitlines():
                command = line.split(" #")[0].strip()
                if command.startswith("kdlab run ") and not any(n in line for n in NEEDS):
                    yield command


@pytest.mark.parametrize("command", sorted(set(documented_runs())))
def test_every_documented_run_could_start(command):
    """Up to the data, the models and the addresses."""
    words = parser().parse_args(shlex.split(command)[1:])
    preflight(load(words.experiment, *words.overrides).spec, lambda line: None)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_compile_and_configs_in_them_load(page):
    import kdlab

    for block in blocks(page, "python"):
        compile(block, str(page), "exec")
        for name in re.findall(r'kdlab\.load\("([\w/]+)"', block):
            assert kdlab.load(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_relative_links_exist(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        generated = target in (
            "pictures/rooms.svg",
            "results.md",
            "events.md",
            "checks.md",
        )  # hooks.py
        assert generated or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_file_the_docs_name_exists():
    for page in PAGES:
        for name in re.findall(
            r"`((?:kdlab|benchmarks|tests|registry|configs)/[\w/.]+\.\w+)`",
            page.read_text(),
        ):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


@pytest.mark.processes("whoever is first makes the run; quickstart's teacher is trained")
@pytest.mark.parametrize(
    ("page", "starts"),
    [("README.md", "clothes/quickstart"), ("docs/notebook.md", "quickstart")],
)
def test_python_of_a_page_reads_what_a_run_has_left(page, starts, taught, monkeypatch):
    """A finished, smaller run stands in for the one that the page starts."""
    begun = []
    monkeypatch.setattr(Experiment, "start", lambda self: begun.append(self.name) or taught)
    sources = [b for b in blocks(ROOT / page, "python") if "RUN_A" not in b]
    exec(compile("\n".join(sources), page, "exec"), {"__name__": "__main__"})
    assert begun == [starts]


@pytest.mark.nightly
@pytest.mark.slow("runs as a reader types them; notebooks run the same in CI")
@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/notebook.md"])
def test_python_of_a_page_runs_from_its_first_line_to_its_last(page, elsewhere, kdlab_home):
    """All of it runs in one session; blocks that name a reader's own runs are left out."""
    sources = [b for b in blocks(ROOT / page, "python") if "RUN_A" not in b]
    (elsewhere / "page.py").write_text("\n".join(sources) + "\n")
    done = subprocess.run(
        [sys.executable, "page.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    runs = run_folders(elsewhere)
    assert runs
    for path in runs:
        assert Run(RunFolder(path)).wait(timeout_s=600).state == "finished"


def test_words_may_come_after_options():
    asked = parser().parse_args(["run", "quickstart", "--json", "train.epochs=2"])
    assert asked.json
    assert asked.overrides == ["train.epochs=2"]
