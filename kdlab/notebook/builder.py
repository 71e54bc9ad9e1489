"""The spec builder: edit an experiment in a form that checks every change.

Changes are overrides of the initial experiment, so the command line's code checks them, and the
saved config is as short as one written by hand. The page (page/form.js) draws the fields and
sends what is typed.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import ipywidgets as widgets
import yaml
from IPython.display import display

from kdlab.config import load as loader
from kdlab.config.yaml_text import parse_value
from kdlab.errors import BadInput, Fault, NotFoundError, SpecError, short
from kdlab.experiment.spec import ExperimentSpec
from kdlab.notebook import form
from kdlab.notebook.controls import Controls
from kdlab.notebook.form import FormField
from kdlab.notebook.live_state import LiveState
from kdlab.notebook.live_widget import LiveWidget
from kdlab.run.experiment import Experiment
from kdlab.run.experiment import load as load_experiment
from kdlab.run.handle.job_handle import in_marimo

if TYPE_CHECKING:
    from kdlab.run.handle.run import Run

# Order of the first keys in the form; all others follow.
_FIRST = (
    "method", "data", "teacher", "teacher_pool", "student", "loss", "soft_labels",
    "aggregation", "train",
)  # fmt: skip


class Draft:
    """An experiment being edited: the initial one with changes. Without widgets.

    Raises:
        NotFoundError: no such config.
    """

    def __init__(self, name: str, changes: Mapping[str, object] | None = None) -> None:
        self.name, self.changes = name, dict(changes or {})
        self.check()

    def set(self, key: str, value: object) -> None:
        """Change one value; a part resets all changes below it.

        Raises:
            BadInput: no config can have this value; nothing is changed.
        """
        before = self.changes
        # Last, as order matters.
        self.changes = {k: v for k, v in before.items() if not _is_below(k, key)} | {
            key: value
        }
        try:
            self.check()
        except BadInput:  # no config can have it
            self.changes = before
            raise

    def check(self) -> None:
        """Check the experiment; faults are those of the command line."""
        self.fault, self.faults = "", list[Fault]()
        try:
            load_experiment(self.name, self.changes)
        except SpecError as error:
            self.fault, self.faults = str(error), error.faults
        self._tree = loader.compose(self.name, [self.changes]).data
        self._written = loader.written(self.name, [self.changes])

    def value(self, field: FormField) -> object:
        """Return a field's value, from its card or default where it is not set."""
        return loader.at(self._tree, field.key, field.default)

    def chosen(self, field: FormField) -> str | None:
        """Return the name of a part's card or component; None where it is null."""
        tree = loader.at(self._written, field.key)
        if not isinstance(tree, Mapping):
            tree = self.value(field)
        if isinstance(tree, Mapping):
            return str(tree.get("use") or tree.get("type") or "")
        return None if tree is None else ""  # several, such as an ensemble of teachers

    def yaml(self) -> str:
        """Return the YAML to save: cards by name, without defaults."""
        return yaml.safe_dump(self._written, sort_keys=False, allow_unicode=True, width=92)

    def save(self, name: str, *, replace: bool = False) -> Path:
        """Save to `configs/` of the current folder, where all commands find it.

        Raises:
            BadInput: the experiment has faults, the name is outside configs/ or exists (without
                `replace`), or writing fails.
        """
        if self.fault:
            raise BadInput(f"Not saved, because it has faults: {self.fault}")
        config = name.strip().removeprefix("configs/").removesuffix(".yaml")
        folder = (Path.cwd() / "configs").resolve()
        path = (folder / f"{config}.yaml").resolve()
        if not config or not path.is_relative_to(folder):
            raise BadInput(f"{name!r} is no name of a config; try my/experiment.")
        if path.exists() and not replace:
            raise BadInput(f"configs/{config}.yaml exists already. Choose another name.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.yaml(), encoding="utf-8")
        except OSError as error:
            raise BadInput(f"Could not save {path}: {error}") from error
        return path


class Builder:
    """View of `experiment.edit()`: fields, YAML, and buttons to save and start."""

    def __init__(self, name: str, changes: Mapping[str, object] | None = None) -> None:
        self.draft, self.shelf = Draft(name, changes), form.CardChoices()
        self.run: Run | None = None
        self.fields: dict[str, FormField] = {}  # shown fields by dotted key
        self.rows: dict[str, LiveState] = {}  # state of the page's rows
        self.fault = ""  # reason that blocks save and start
        self._unread: dict[str, tuple[str, str]] = {}  # invalid texts by key, with errors
        self._saved: Path | None = None  # written by this form, which may overwrite it
        self.page = LiveWidget("", "", lambda: self.page.reset({}))
        self.controls = Controls(self.page, {
            "set": lambda order: self._enter(order.name, order.text),
            "save": lambda order: self._save(order.name),
            "start": lambda _: self._start(),
        })  # fmt: skip
        self.output = widgets.Output()
        self.box = widgets.VBox([self.page, self.output])
        self._show()

    @property
    def experiment(self) -> Experiment:
        """Experiment with all changes.

        Raises:
            SpecError: lists all faults.
        """
        return load_experiment(self.draft.name, self.draft.changes)

    def _ipython_display_(self) -> None:
        display(self.box)

    def _display_(self) -> object:
        """Widget for marimo."""
        return self.page

    def __repr__(self) -> str:
        state = "has faults" if self.draft.fault else "ready to run"
        return f"Builder({self.draft.name!r}, {len(self.draft.changes)} changes, {state})"

    def set(self, key: str, value: object) -> None:
        """Change a value as a field does; for scripts and tests.

        Raises:
            BadInput: no config can have this value.
        """
        self.draft.set(key, value)
        self._unread = {k: v for k, v in self._unread.items() if not _is_below(k, key)}
        self._show()

    # Orders of the page

    def _enter(self, key: str, text: str) -> str:
        """Set a field to a picked or typed text."""
        if key not in self.fields:
            raise BadInput(f"{key!r} is no field of this form.")
        field, picks = self.fields[key], self._picks(self.fields[key])
        if text in picks or f"{text.partition('/')[0]}/*" in picks:
            self.set(key, picks.get(text, {"type": text}))
            return ""
        if picks:
            raise BadInput(f"{short(repr(text), 100)} is no choice for {key}.")
        try:
            self.set(key, text if field.kind == "text" else parse_value(text))
        except BadInput as error:
            self._unread[key] = (text, str(error))
            self._show()
        return ""

    def _save(self, name: str) -> str:
        self._check()
        configs = (Path.cwd() / "configs").resolve()
        replace = self._saved == (configs / f"{name.strip()}.yaml").resolve()
        self._saved = self.draft.save(name, replace=replace)
        config = self._saved.relative_to(configs).with_suffix("")
        return f"Saved. Run it with: kdlab run {config}, or kdlab.load('{config}').start()"

    def _start(self) -> str:
        self._check()
        self.controls.reply("checking data, models and weights ...", "plain")
        self.run = self.experiment.start()
        reply = f"started: {self.run.id}"
        if in_marimo():  # a cell shows only its final value
            return f"{reply}. See it in a cell: kdlab.attach({self.run.id!r}).live()"
        with self.output:
            self.run.live()
        return reply

    def _check(self) -> None:
        if self.fault:
            raise BadInput(self.fault)

    # State of the page

    def _show(self) -> None:
        self.fields, self.rows = {}, {}
        fields = {f.key: f for f in form.fields_of(ExperimentSpec)}
        rows = [self._row(fields[key]) for key in dict.fromkeys((*_FIRST, *fields))]
        invalid = [Fault(k, why) for k, (_, why) in self._unread.items() if k in self.rows]
        for fault in (*invalid, *self.draft.faults):
            at = fault.key
            while at and at not in self.rows:  # inside a typed value, or not in this form
                at = at.rpartition(".")[0]
            if at:
                self.rows[at]["fault"] += f"{fault.message}\n"
        self.fault = "\n".join([*map(str, invalid), self.draft.fault]).strip()
        self.page.again = f"kdlab.load({self.draft.name!r}, {self.draft.changes!r}).edit()"
        facts = {"title": self.draft.name, "fault": self.fault, "yaml": self.draft.yaml()}
        self.page.state = {"form": facts | {"rows": rows}}
        self.controls.show(["save", "start"], off=bool(self.fault))

    def _row(self, field: FormField) -> LiveState:
        """Return a field's state for the page; a part includes its fields."""
        self.fields[field.key] = field
        picks, value = self._picks(field), self.draft.value(field)
        limit = f"Allowed: {field.limit}.".replace(" ", "\xa0") if field.limit else ""
        row = self.rows[field.key] = {
            "key": field.key,
            "kind": field.kind,
            "options": list(picks.items()) if len(picks) > 1 else [],
            "text": self._text(field, value),
            "about": f"{field.about} {limit}".strip(),
            "fault": "",
        }
        if field.part is not None:
            row["rows"] = []
            with suppress(NotFoundError):  # the fault reports it
                cls = form.part_class(value, field.part)
                if cls is not None:
                    row["about"] = self.shelf.about(row["text"]) or form.first_sentence(cls)
                    row["rows"] = [self._row(f) for f in form.fields_of(cls, field.key)]
        return row

    def _text(self, field: FormField, value: object) -> str:
        """Return a field's text: what was typed, the picked name, or its value."""
        if field.key in self._unread:
            return self._unread[field.key][0]
        if field.part is not None:
            name = self.draft.chosen(field)
            return "null" if name is None else name
        return str(value or "") if field.kind == "text" else _line(value)

    def _picks(self, field: FormField) -> dict[str, object]:
        """Return choices by name, as config values; empty for typed fields."""
        picks: dict[str, object] = {_line(choice): choice for choice in field.choices}
        if field.kind == "yes_no" and field.optional:
            picks = {"true": True, "false": False}
        elif field.part is not None:
            picks = {card.name: card.tree() for card in self.shelf.fitting(field.part)}
        return {"null": None} | picks if field.optional and picks else picks


def _line(value: object) -> str:
    """Write a value on one line, as in an override."""
    text = str(yaml.safe_dump(value, default_flow_style=True, width=10_000))
    return text.removesuffix("...\n").strip()


def _is_below(key: str, parent: str) -> bool:
    return f"{key}.".startswith(f"{parent}.")
