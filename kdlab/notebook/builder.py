"""The spec builder: an experiment put together by hand, checked while it is typed.

What is changed is kept as overrides of the experiment it began with, so the same code checks
it that checks the command line, and what is saved is as short as what a person would write.
"""

import html
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import ipywidgets as widgets
import yaml
from IPython.display import display

from kdlab.config import load as loader
from kdlab.config.spec import Range
from kdlab.config.yaml_text import parse_value
from kdlab.errors import BadInput, KdlabError, NotFoundError, SpecError
from kdlab.experiment.spec import ExperimentSpec
from kdlab.notebook import form
from kdlab.notebook.form import FormField
from kdlab.run.experiment import Experiment
from kdlab.run.experiment import load as load_experiment

if TYPE_CHECKING:
    from kdlab.run.handle.run import Run

_STYLE = {"description_width": "150px"}
_NONE = "(none)"
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
        """One value; a part replaces all that was changed below it."""
        below = f"{key}."
        self.changes = {k: v for k, v in self.changes.items() if not k.startswith(below)}
        self.changes.pop(key, None)  # so that it comes last: order matters
        self.changes[key] = value
        self.check()

    def check(self) -> None:
        """Whether it could run, in the words of the command line."""
        self.fault = ""
        try:
            load_experiment(self.name, self.changes)
        except SpecError as error:
            self.fault = str(error)
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
        self.message, self.text = widgets.HTML(), widgets.HTML()
        self.name = widgets.Text(value="my/experiment", description="save as configs/")
        self.name.style.description_width = "120px"
        self.save = self._button("save", self._save)
        self.start = self._button("start", self._start)
        self.output = widgets.Output()
        self.fields: dict[str, widgets.Widget] = {}  # widgets by dotted key
        self._unread: dict[str, str] = {}  # fields whose text is no value, and why
        self._saved: Path | None = None  # by this form: it may write there again
        self.sections = widgets.Accordion(children=[])
        self._build()
        row = widgets.HBox([self.name, self.save, self.start])
        self.box = widgets.VBox([self.sections, self.message, row, self.text, self.output])
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

    def __repr__(self) -> str:
        state = "has faults" if self.draft.fault else "could run"
        return f"Builder({self.draft.name!r}, {len(self.draft.changes)} changes, {state})"

    def set(self, key: str, value: object) -> None:
        """What a field does when it is changed; for scripts and tests."""
        self._unread.pop(key, None)
        self.draft.set(key, value)
        self._show()

    # Fields

    def _build(self) -> None:
        known = {f.key: f for f in form.fields_of(ExperimentSpec)}
        order = [*_FIRST, *(key for key in known if key not in _FIRST)]
        parts = [known[key] for key in order if known[key].part is not None]
        plain = [known[key] for key in order if known[key].part is None]
        boxes = [self._part(field) for field in parts]
        boxes.append(widgets.VBox([self._plain(field) for field in plain], layout=_wide()))
        self.sections.children = boxes
        for number, field in enumerate(parts):
            self.sections.set_title(number, field.key)
        self.sections.set_title(len(parts), "all else")

    def _part(self, field: FormField) -> widgets.VBox:
        """A dropdown of what fits, its documentation, and its own fields."""
        assert field.part is not None
        choices = {c.name: c for c in self.shelf.fitting(field.part)}
        body = widgets.VBox(self._inside(field), layout=_wide())
        if len(choices) + field.optional < 2:
            return body
        options = [
            (f"{c.name}  ({'card' if c.how == 'use' else 'component'})", c.name)
            for c in choices.values()
        ]
        if field.optional:
            options.insert(0, (_NONE, _NONE))
        name = self.draft.chosen(field)
        family = f"{str(name).split('/', 1)[0]}/*"
        shown = _NONE if name is None else name if name in choices else family
        chooser = widgets.Dropdown(
            options=options,
            value=shown if shown in dict(options).values() else None,
            description=field.key.rpartition(".")[2],
            layout=_wide(),
            style=_STYLE,
        )
        of_family = shown == family
        variant = widgets.Text(
            description=family if of_family else "",
            value=str(name).partition("/")[2] if of_family else "",
            placeholder="which of the family, such as resnet18",
            continuous_update=False,
            layout=_wide(),
            style=_STYLE,
        )
        variant.layout.display = "" if of_family else "none"
        self.fields[field.key], self.fields[f"{field.key}.*"] = chooser, variant

        def choose(change: Mapping[str, object]) -> None:
            picked = str(change["new"])
            of_family = picked.endswith("/*")
            variant.layout.display = "" if of_family else "none"
            variant.description = picked if of_family else ""
            if of_family:  # which of the family is typed next
                body.children = ()
                return
            take(None if picked == _NONE else choices[picked].tree())

        def name_variant(change: Mapping[str, object]) -> None:
            if change["new"]:
                take({"type": f"{str(chooser.value).removesuffix('*')}{change['new']}"})

        def take(tree: Mapping[str, str] | None) -> None:
            self.set(field.key, tree)
            body.children = self._inside(field)

        chooser.observe(choose, names="value")
        variant.observe(name_variant, names="value")
        return widgets.VBox([chooser, variant, body], layout=_wide())

    def _inside(self, field: FormField) -> tuple[widgets.Widget, ...]:
        """What a part is, and its fields."""
        assert field.part is not None
        below = f"{field.key}."
        for key in [k for k in self.fields if k.startswith(below) and not k.endswith(".*")]:
            self.fields.pop(key).unobserve_all()
            self._unread.pop(key, None)
        try:
            own = form.part_class(self.draft.value(field), field.part)
        except NotFoundError:  # the message below the form says so
            own = None
        if own is None:
            return (_words(field.about),)
        rows = [
            self._part(f) if f.part is not None else self._plain(f)
            for f in form.fields_of(own, field.key)
        ]
        about = self.shelf.about(self.draft.chosen(field)) or form.first_sentence(own)
        return (_words(about), *rows)

    def _plain(self, field: FormField) -> widgets.VBox:
        widget, read = _widget(field, self.draft.value(field))
        self.fields[field.key] = widget
        widget.observe(partial(self._typed, field, read), names="value")
        return widgets.VBox([widget, _words(field.about, field.limit)], layout=_wide())

    def _typed(
        self,
        field: FormField,
        read: Callable[[object], object],
        change: Mapping[str, object],
    ) -> None:
        try:
            self.set(field.key, read(change["new"]))
        except BadInput as error:
            self._unread[field.key] = str(error)
            self._show()

    # Showing and acting

    def _show(self) -> None:
        unread = "\n".join(f"{key}: {why}" for key, why in self._unread.items())
        fault = "\n".join(filter(None, (unread, self.draft.fault)))
        self._say(fault)
        self.save.disabled = self.start.disabled = bool(fault)
        shown = html.escape(self.draft.yaml())
        self.text.value = f"<pre style='line-height:1.25'>{shown}</pre>"

    def _say(self, text: str) -> None:
        kind = "could run" if not text else html.escape(text)
        self.message.value = f"<pre style='white-space:pre-wrap'>{kind}</pre>"

    def _button(self, label: str, act: Callable[[], None]) -> widgets.Button:
        def attempt(_: object) -> None:
            self._say("")
            try:
                act()
            except KdlabError as error:
                self._say(str(error))

        made = widgets.Button(description=label)
        made.on_click(attempt)
        return made

    def _save(self) -> None:
        again = self._saved is not None and self._saved.is_file()
        wanted = Path.cwd() / "configs" / f"{self.name.value.strip()}.yaml"
        same = again and self._saved == wanted.resolve()
        self._saved = self.draft.save(self.name.value, replace=same)
        name = self._saved.relative_to((Path.cwd() / "configs").resolve()).with_suffix("")
        self._say(f"Saved. Run it with: kdlab run {name}, or kdlab.load('{name}').start()")

    def _start(self) -> None:
        self._say("looking at data, models and weights ...")
        self.run = self.experiment.start()
        self._say(f"started: {self.run.id}")
        with self.output:
            self.run.live()


def _widget(
    field: FormField, value: object
) -> tuple[widgets.Widget, Callable[[object], object]]:
    """A widget for one value, and how its value is read."""
    name = field.key.rpartition(".")[2]
    shared: dict[str, object] = {"description": name, "style": _STYLE, "layout": _wide()}
    if field.kind == "choice":
        options = [*([_NONE] if field.optional else []), *field.choices]
        shown = _NONE if value is None else value
        chooser = widgets.Dropdown(options=options, value=shown, **shared)
        return chooser, lambda picked: None if picked == _NONE else picked
    if field.kind == "yes_no" and not field.optional:
        return widgets.Checkbox(value=bool(value), indent=True, **shared), bool
    shared["continuous_update"] = False
    if field.kind == "text" and not field.optional:
        return widgets.Text(value=str(value or ""), **shared), str
    # On one line, as an override would be written.
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    written = text.removesuffix("...\n").strip()
    return widgets.Text(value=written, **shared), lambda typed: parse_value(str(typed))


def _wide() -> widgets.Layout:
    """One for each widget: hiding one must not hide the others."""
    return widgets.Layout(width="98%")


def _words(about: str, limit: Range | None = None) -> widgets.HTML:
    text = about + (f" Allowed: {limit}." if limit is not None and str(limit) else "")
    look = "opacity:.65;margin-left:158px;line-height:1.35"
    return widgets.HTML(f"<div style='{look}'>{html.escape(text)}</div>" if text else "")
