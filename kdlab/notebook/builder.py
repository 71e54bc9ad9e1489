"""The spec builder: an experiment put together by hand, checked while it is typed.

What is changed is kept as overrides of the experiment it began with, so the same code checks
it that checks the command line, and what is saved is as short as what a person would write.
The page (page/form.js) draws the fields that it is told, and says what is typed there.
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

# The order in which one thinks of an experiment; all other keys follow.
_FIRST = (
    "method", "data", "teacher", "teacher_pool", "student", "loss", "soft_labels",
    "aggregation", "train",
)  # fmt: skip


class Draft:
    """An experiment in the making: the one it began with, and what was changed. No widget.

    Raises:
        NotFoundError: no such config.
    """

    def __init__(self, name: str, changes: Mapping[str, object] | None = None) -> None:
        self.name, self.changes = name, dict(changes or {})
        self.check()

    def set(self, key: str, value: object) -> None:
        """Change one value; a part replaces all that was changed below it.

        Raises:
            BadInput: no config can have such a value; nothing is changed.
        """
        before = self.changes
        # It comes last: order matters.
        self.changes = {k: v for k, v in before.items() if not _lies_in(k, key)} | {
            key: value
        }
        try:
            self.check()
        except BadInput:  # no config can have it
            self.changes = before
            raise

    def check(self) -> None:
        """Whether it could run, in the words of the command line."""
        self.fault, self.faults = "", list[Fault]()
        try:
            load_experiment(self.name, self.changes)
        except SpecError as error:
            self.fault, self.faults = str(error), error.faults
        self._tree = loader.compose(self.name, [self.changes]).data
        self._written = loader.written(self.name, [self.changes])

    def value(self, field: FormField) -> object:
        """With cards read and defaults filled in."""
        return loader.at(self._tree, field.key, field.default)

    def chosen(self, field: FormField) -> str | None:
        """Name of the card or component a part is made of; None where it is null."""
        tree = loader.at(self._written, field.key)
        if not isinstance(tree, Mapping):
            tree = self.value(field)
        if isinstance(tree, Mapping):
            return str(tree.get("use") or tree.get("type") or "")
        return None if tree is None else ""  # several, such as an ensemble of teachers

    def yaml(self) -> str:
        """As it would be saved: cards by name, nothing that is a default."""
        return yaml.safe_dump(self._written, sort_keys=False, allow_unicode=True, width=92)

    def save(self, name: str, *, replace: bool = False) -> Path:
        """Into `configs/` of the current folder, where every command finds it.

        Raises:
            BadInput: it has a fault, the name leads elsewhere or is taken (and not to be replaced),
                or nothing can be written there.
        """
        if self.fault:
            raise BadInput(f"Not saved, for it could not run: {self.fault}")
        clean = name.strip().removeprefix("configs/").removesuffix(".yaml")
        folder = (Path.cwd() / "configs").resolve()
        path = (folder / f"{clean}.yaml").resolve()
        if not clean or not path.is_relative_to(folder):
            raise BadInput(f"{name!r} is no name of a config; try my/experiment.")
        if path.exists() and not replace:
            raise BadInput(f"configs/{clean}.yaml is there already. Take another name.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.yaml(), encoding="utf-8")
        except OSError as error:
            raise BadInput(f"Nothing was saved at {path}: {error}") from error
        return path


class Builder:
    """What `experiment.edit()` shows: dropdowns and fields, the YAML, save and start."""

    def __init__(self, name: str, changes: Mapping[str, object] | None = None) -> None:
        self.draft, self.shelf = Draft(name, changes), form.CardChoices()
        self.run: Run | None = None
        self.fields: dict[str, FormField] = {}  # that are shown, by dotted key
        self.rows: dict[str, LiveState] = {}  # as the page has them
        self.fault = ""  # why it cannot be saved and started
        self._unread: dict[str, tuple[str, str]] = {}  # texts that are no value, and why
        self._saved: Path | None = None  # by this form: it may write there again
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
        """As it is now.

        Raises:
            SpecError: with every fault.
        """
        return load_experiment(self.draft.name, self.draft.changes)

    def _ipython_display_(self) -> None:
        display(self.box)

    def _display_(self) -> object:
        """What marimo shows of it."""
        return self.page

    def __repr__(self) -> str:
        state = "has faults" if self.draft.fault else "could run"
        return f"Builder({self.draft.name!r}, {len(self.draft.changes)} changes, {state})"

    def set(self, key: str, value: object) -> None:
        """What a field does when it is changed; for scripts and tests.

        Raises:
            BadInput: no config can have such a value.
        """
        self.draft.set(key, value)
        self._unread = {k: v for k, v in self._unread.items() if not _lies_in(k, key)}
        self._show()

    # What the page asks for

    def _enter(self, key: str, text: str) -> str:
        """Take what was picked or typed in a field."""
        if key not in self.fields:
            raise BadInput(f"{key!r} is no field of this form.")
        field, picks = self.fields[key], self._picks(self.fields[key])
        if text in picks or f"{text.partition('/')[0]}/*" in picks:
            self.set(key, picks.get(text, {"type": text}))
            return ""
        if picks:
            raise BadInput(f"{short(repr(text), 100)} is none of what {key} can be.")
        try:
            self.set(key, text if field.kind == "text" else parse_value(text))
        except BadInput as error:
            self._unread[key] = (text, str(error))
            self._show()
        return ""

    def _save(self, name: str) -> str:
        self._check()
        configs = (Path.cwd() / "configs").resolve()
        same = self._saved == (configs / f"{name.strip()}.yaml").resolve()
        self._saved = self.draft.save(name, replace=same)
        saved = self._saved.relative_to(configs).with_suffix("")
        return f"Saved. Run it with: kdlab run {saved}, or kdlab.load('{saved}').start()"

    def _start(self) -> str:
        self._check()
        self.controls.say("looking at data, models and weights ...", "plain")
        self.run = self.experiment.start()
        started = f"started: {self.run.id}"
        if in_marimo():  # a cell shows what it ends with, and nothing that comes later
            return f"{started}. See it in a cell: kdlab.attach({self.run.id!r}).live()"
        with self.output:
            self.run.live()
        return started

    def _check(self) -> None:
        if self.fault:
            raise BadInput(self.fault)

    # What it shows

    def _show(self) -> None:
        self.fields, self.rows = {}, {}
        known = {f.key: f for f in form.fields_of(ExperimentSpec)}
        rows = [self._row(known[key]) for key in dict.fromkeys((*_FIRST, *known))]
        unread = [Fault(k, why) for k, (_, why) in self._unread.items() if k in self.rows]
        for fault in (*unread, *self.draft.faults):
            at = fault.key
            while at and at not in self.rows:  # below what one types, or not in this form
                at = at.rpartition(".")[0]
            if at:
                self.rows[at]["fault"] += f"{fault.message}\n"
        self.fault = "\n".join([*map(str, unread), self.draft.fault]).strip()
        self.page.again = f"kdlab.load({self.draft.name!r}, {self.draft.changes!r}).edit()"
        shown = {"title": self.draft.name, "fault": self.fault, "yaml": self.draft.yaml()}
        self.page.state = {"form": shown | {"rows": rows}}
        self.controls.show(["save", "start"], off=bool(self.fault))

    def _row(self, field: FormField) -> LiveState:
        """A field as the page draws it; of a part with those of what it is."""
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
            with suppress(NotFoundError):  # the fault says so
                own = form.part_class(value, field.part)
                if own is not None:
                    row["about"] = self.shelf.about(row["text"]) or form.first_sentence(own)
                    row["rows"] = [self._row(f) for f in form.fields_of(own, field.key)]
        return row

    def _text(self, field: FormField, value: object) -> str:
        """What stands in a field: what was typed, a name that was picked, or its value."""
        if field.key in self._unread:
            return self._unread[field.key][0]
        if field.part is not None:
            name = self.draft.chosen(field)
            return "null" if name is None else name
        return str(value or "") if field.kind == "text" else _line(value)

    def _picks(self, field: FormField) -> dict[str, object]:
        """What can be picked, by its name, as a config has it; nothing where one types."""
        found: dict[str, object] = {_line(one): one for one in field.choices}
        if field.kind == "yes_no" and field.optional:
            found = {"true": True, "false": False}
        elif field.part is not None:
            found = {one.name: one.tree() for one in self.shelf.fitting(field.part)}
        return {"null": None} | found if field.optional and found else found


def _line(value: object) -> str:
    """On one line, as an override would be written."""
    text = str(yaml.safe_dump(value, default_flow_style=True, width=10_000))
    return text.removesuffix("...\n").strip()


def _lies_in(key: str, whole: str) -> bool:
    return f"{key}.".startswith(f"{whole}.")
