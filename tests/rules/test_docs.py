"""Docs are run: shell blocks name real commands, Python blocks execute, links exist."""

import re
import shlex
from pathlib import Path

import pytest

from kdlab.cli import _parser

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
            _parser().parse_args(words)  # exits when the command line is wrong


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
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_file_the_docs_name_exists():
    for page in PAGES:
        for name in re.findall(
            r"`((?:kdlab|tests|registry|configs)/[\w/.]+\.\w+)`", page.read_text()
        ):
            assert (ROOT / name).exists(), f"{page.name}: {name}"
