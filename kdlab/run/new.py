"""`kdlab new`: a commented config and a notebook for photos."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml

from kdlab.config import load as loader
from kdlab.config.home import write_whole
from kdlab.data.images import PHOTO_SIZE
from kdlab.errors import BadInput
from kdlab.run.experiment import Experiment, load
from kdlab.run.new_run_options import NewRunOptions, places
from kdlab.run.outputs.data_sheet import DataSheet, look_at
from kdlab.run.recommend import Recommendation, recommend, summary

_WIDE = 100  # characters of a line
_MORE = (
    "# seeds: [0, 1, 2] gives a spread; soft_labels: served with compare: [none, served] asks "
    "a pool."
)


@dataclass(frozen=True, slots=True)
class NewExperiment:
    """A new experiment: facts of its data, the choices, and the written files."""

    name: str
    sheet: DataSheet
    chosen: Recommendation
    config: Path
    notebook: Path

    def __str__(self) -> str:
        return (
            f"{self.sheet}\n\nChosen:\n{summary(self.chosen)}\n\n"
            f"Written: {self.config}, with the reasons, and {self.notebook}\n\n"
            f"    kdlab run {self.name}\n"
            f"    kdlab predict last PHOTO.jpg"
        )


def new(
    name: str,
    wishes: NewRunOptions,
    *,
    force: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> NewExperiment:
    """Inspect the photos, choose an experiment, write `configs/NAME.yaml` and `NAME.ipynb`.

    Args:
        name: of the experiment.
        wishes: its data, and options.
        force: overwrite existing files.
        say: called with lines of progress.

    Raises:
        BadInput: data or network do not exist, `name` is no file name, or the files exist or
            cannot be written.
    """
    config, notebook = places(name, force=force)
    sheet, chosen = choose_experiment(wishes, say)
    text = commented(chosen, name)
    cells = json.dumps(_notebook(name, chosen), indent=1) + "\n"
    try:
        config.parent.mkdir(exist_ok=True)
        write_whole(config, lambda path: path.write_text(text, encoding="utf-8"))
        write_whole(notebook, lambda path: path.write_text(cells, encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{config} and {notebook} cannot be written: {error}.") from error
    load(name)  # a fault in the written config shows here
    return NewExperiment(name, sheet, chosen, config, notebook)


def choose_experiment(
    wishes: NewRunOptions, say: Callable[[str], None]
) -> tuple[DataSheet, Recommendation]:
    """Inspect the photos and choose an experiment for them.

    Raises:
        BadInput: the data or a network does not exist.
    """
    say(f"inspecting {wishes.data}")
    sheet = look_at(wishes.data, "kept=encoded", f"size={PHOTO_SIZE}", say=say)
    chosen = recommend(wishes, sheet, say)
    known = sheet.known.replace(size=chosen.config["data"]["size"])
    return replace(sheet, known=known), chosen


def experiment_for(
    wishes: NewRunOptions,
    overrides: tuple[str | Mapping[str, object], ...],
    say: Callable[[str], None],
) -> Experiment:
    """Choose an experiment for photos without writing files; see `kdlab.distil`."""
    _, chosen = choose_experiment(wishes, say)
    say(summary(chosen))
    name = Path(wishes.data.rstrip("/")).stem or "photos"
    experiment = Experiment(
        loader.from_dict(chosen.config, name, overrides), loader.merged(overrides), name
    )
    experiment.spec  # noqa: B018  # checks it now
    return experiment


def commented(chosen: Recommendation, name: str) -> str:
    """Format a config as a person would write it: short, each choice with its reason."""
    config, why = dict(chosen.config), chosen.reasons
    lines = [
        f"# kdlab run {name} trains it; kdlab show {name} has every key; kdlab list, all parts.",
        f"about: {_flow(config.pop('about'))}",
    ]
    for key in ("data", "teacher"):
        block = config.pop(key)
        lines += ["", *_with_why(f"{key}:", why.get(key, ""))]
        for inner, value in block.items():
            lines += _with_why(f"  {inner}: {_flow(value)}", why.get(f"{key}.{inner}", ""))
    lines.append("")
    for key, value in config.items():
        parts = [f"{k}: {why[f'{key}.{k}']}" for k in value if f"{key}.{k}" in why]
        lines += _with_why(f"{key}: {_flow(value)}", why.get(key) or "; ".join(parts))
    return "\n".join([*lines, _MORE]) + "\n"


def _with_why(line: str, why: str) -> list[str]:
    """The line with its reason as a comment: after it where there is room, else above."""
    if not why or len(line) + len(why) + 4 <= _WIDE:
        return [f"{line}  # {why}" if why else line]
    before = " " * (len(line) - len(line.lstrip())) + "# "
    return [*wrap(why, _WIDE, initial_indent=before, subsequent_indent=before), line]


def _flow(value: object) -> str:
    """The value as YAML on one line."""
    text = yaml.safe_dump(
        value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("...\n").strip()


def _notebook(name: str, chosen: Recommendation) -> dict[str, Any]:
    data = chosen.config["data"]["root"]
    cells = (
        _words(f"# {name}\n\nFrom photos to a small network. Each cell can be run again."),
        _code(f'import kdlab\n\nexp = kdlab.load("{name}")\nexp'),
        _words("The photos, and the views that the student will see:"),
        _code(f"kdlab.look_at({data!r})"),
        _code("exp.show_batch(teacher=False)"),
        _words("Time, memory and disk on this machine:"),
        _code("exp.estimate()"),
        _words(
            "The teacher is trained once and kept. The run continues if you close this page."
        ),
        _code("run = exp.start()\nrun.live()"),
        _code("run.wait()\nprint(run.table())"),
        _words("Its mistakes, class by class, and its calibration:"),
        _code("run.examine()"),
        _words("Any photo, or a folder of them:"),
        _code('run.predict(run.test_images(4))\n# run.predict("photo.jpg")'),
    )
    return {
        "cells": [
            {"id": f"cell-{k}", "metadata": {}} | cell for k, cell in enumerate(cells)
        ],
        "metadata": {
            "kernelspec": {
                "display_name": "Python 3",
                "language": "python",
                "name": "python3",
            }
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _words(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "source": text}


def _code(text: str) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": None, "outputs": [], "source": text}
