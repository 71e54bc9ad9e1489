import subprocess
import sys
import textwrap
from dataclasses import dataclass

import pytest

from kdlab.config import Spec, registry, source_index
from kdlab.config.registry import register


def test_every_name_is_its_path():
    families = {"timm/*": "kdlab.models.timm", "torchvision/*": "kdlab.models.torchvision"}
    for entry in source_index.index():
        package = "benchmarks" if entry.kind == "reproduce" else "kdlab"
        path = families.get(entry.name, f"{package}.{entry.name.replace('/', '.')}")
        assert entry.module in (path, f"{path}.method")  # a method is a folder


def test_every_component_loads_and_has_a_line_of_documentation():
    for entry in source_index.index():
        name = entry.name.replace("*", "x")
        cls, variant = registry.find(name)
        assert cls.component == entry.name
        assert (variant == "x") == entry.name.endswith("/*")
        assert entry.doc, f"{entry.name} has no docstring"


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="already registered"):

        @register("losses/hinton")
        @dataclass(frozen=True, kw_only=True)
        class Impostor(Spec):
            pass


@pytest.mark.processes
def test_an_entry_point_works_like_a_built_in_component(tmp_path):
    """A real installed package: metadata on the path, found by name, built and trained with."""
    (tmp_path / "mykd.py").write_text(
        textwrap.dedent('''
            from dataclasses import dataclass
            from kdlab.losses.soft_loss import LossSpec

            @dataclass(frozen=True, kw_only=True)
            class Squares(LossSpec):
                """Squared distance of logits."""
                def soft(self, student, teacher, labels):
                    return ((student - teacher.detach()) ** 2).mean()
        ''')
    )
    info = tmp_path / "mykd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mykd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[kdlab.components]\nlosses/squares = mykd:Squares\n"
    )
    code = (
        "import kdlab; e = kdlab.load('quickstart', {'loss': {'type': 'losses/squares'}});"
        "print(e.spec.loss, e.resolved['loss']['type'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path), "PATH": "", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Squares(" in done.stdout
    assert "losses/squares" in done.stdout
