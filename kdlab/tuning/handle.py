"""A sweep from outside: loaded and checked, started, watched. It outlives this process."""

import html
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kdlab.cluster import notebook_components
from kdlab.config import folders, yaml_text
from kdlab.config import load as loader
from kdlab.config.check import construct
from kdlab.config.home import locked, write_json, write_whole
from kdlab.config.registry import component_names
from kdlab.errors import (
    BadInput,
    ClusterError,
    NotFoundError,
    RunFailed,
    RunStopped,
    SpecError,
)
from kdlab.experiment.folder import FORMAT
from kdlab.report import page
from kdlab.report.table import text_table_left
from kdlab.run.experiment import Experiment
from kdlab.run.watched import Watched, spawn
from kdlab.tuning import samplers, simulated
from kdlab.tuning.folder import (
    SweepFolder,
    check_hash,
    counted,
    find,
    read_study,
    sweeps_folder,
)
from kdlab.tuning.plan import shares_pool
from kdlab.tuning.repeat import check_real
from kdlab.tuning.space import Space
from kdlab.tuning.spec import SweepSpec
from kdlab.tuning.warm_start import earlier

if TYPE_CHECKING:
    import optuna

_PATIENCE_S = 5.0
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def check_name(name: str) -> None:
    """Whether the best can be saved as this.

    Raises:
        BadInput: it is no name, or there already.
    """
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} is no name; take letters, digits, - and _.")
    there = [
        p
        for shelf in ("configs", "registry/*")
        for p in Path.cwd().glob(f"{shelf}/{name}.yaml")
    ]
    if there:
        raise BadInput(f"{folders.display(there[0])} is there already. Take another name.")


class CheckedSweep:
    """A sweep before it runs: checked; `start()` runs it.

    Raises:
        SpecError, NotFoundError, BadInput: what is wrong, as the command line says it.
    """

    def __init__(self, composed: loader.Composed) -> None:
        # Of a file, or the name of one under configs/.
        is_path = composed.name.endswith(".yaml")
        self.name = (
            Path(composed.name).stem if is_path else composed.name.removeprefix("sweeps/")
        )
        self.spec = construct(SweepSpec, composed)
        samplers.check(self.spec)
        self.space = Space(self.spec)
        if self.spec.sampler["name"] == "grid":
            self.space.grid()
        self._check_real()

    @property
    def hash(self) -> str:
        return loader.spec_hash(counted(self.spec.to_dict()))

    def _check_real(self) -> None:
        if self.spec.simulated:
            simulated.check(self.space.base)  # type: ignore[arg-type]  # built as one
        if self.spec.real is not None:
            check_real(self.spec.real, self.space)

    def check(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Data, models and addresses of the experiment as it is.

        Raises:
            BadInput: one clear message; nothing was started.
        """
        if self.spec.workers is not None:
            self.spec.workers.check()
        if not self.spec.simulated:
            Experiment(self.space.composed({})).check(say)

    def start(
        self, study: str | None = None, say: Callable[[str], None] = lambda line: None
    ) -> "Sweep":
        """In a process of its own; a study of this name is gone on with.

        Raises:
            BadInput: the study is of another sweep, or its sweep is running.
        """
        name = study or self.name.replace("/", "-")
        if not _NAME.fullmatch(name):
            raise BadInput(
                f"{name!r} is no name of a study; take letters, digits, - and _."
            )
        folder = SweepFolder(sweeps_folder() / name)
        check_hash(folder, self.hash, self.name)
        if not folder.spec.is_file():
            earlier(self.spec, self.space)  # whether there is something
        self.check(say)
        components = notebook_components.pack(component_names(self._whole()))
        if components and self.spec.workers is not None:
            raise BadInput(
                f"The sweep uses {', '.join(components)} from a notebook cell, which Dask workers "
                "do not accept. Install the component as an entry point of the group "
                "kdlab.components on every machine, or leave workers away."
            )

        # A killed process counts as gone a moment before its last thread lets go of the lock.
        patience = time.monotonic() + _PATIENCE_S

        def busy(*, sure: bool = False) -> None:
            if sure or time.monotonic() > patience:
                raise BadInput(
                    f"The sweep {name} is going already; watch it: kdlab attach sweeps/{name}"
                )

        try:
            with locked(folder.path / "lock", busy):
                if folder.status().get("state") in ("starting", "running"):
                    busy(sure=True)
                self._write(folder, components)
        except OSError as error:
            raise ClusterError(
                f"The sweep's folder {folder.path} cannot be written: {error}. Nothing was "
                "started, and what is in it is as it was."
            ) from error
        spawn(folder, components, "kdlab.tuning.child")
        return Sweep(folder)

    def _write(self, folder: SweepFolder, components: dict[str, Any]) -> None:
        """What its process reads. A study that goes on keeps the name it began with."""
        text = yaml_text.dump(self.spec.to_dict())
        write_whole(folder.spec, lambda path: _write_text(path, text))
        write_json(folder.path / "components.json", components)
        known = folder.experiment().get("experiment", f"sweeps/{self.name}")
        facts = {
            "format": FORMAT,
            "experiment": known,
            "spec_hash": self.hash,
            "cwd": os.getcwd(),
        }
        write_json(folder.path / "experiment.json", facts)
        folder.write_status(
            state="starting", created=time.time(), pid=None, error=None, result=None
        )

    def _whole(self) -> list[Any]:
        """All trees in which a trial may name a component of a notebook cell."""
        chosen = [{"type": c} for d in self.spec.space.values() for c in d.choices or ()]
        return [self.space.base.to_dict(), *chosen]

    def __repr__(self) -> str:
        of = self.spec.experiment or self.spec.simulation
        keys = ", ".join(self.spec.space)
        return f"CheckedSweep({self.name!r}: {of} over {keys}, {self.spec.trials} trials)"

    def _repr_html_(self) -> str:
        rows = [
            (key, _range_text(dimension), self.space.leaves[key].value)
            for key, dimension in self.spec.space.items()
        ]
        of = self.spec.experiment or self.spec.simulation
        pool = "one pool for all trials" if shares_pool(self.spec, self.space) else ""
        head = f"<b>{html.escape(self.name)}</b> over <code>{html.escape(str(of))}</code> {pool}"
        return head + page.table(("key", "may be", "as it is"), rows)


def _range_text(dimension: Any) -> str:
    if dimension.choices is not None:
        return ", ".join(map(str, dimension.choices))
    text = f"{dimension.low:g} to {dimension.high:g}"
    text += " (log)" if dimension.log else ""
    text += f" times {dimension.times}" if dimension.times else ""
    when = [f"{k} is {v}" for k, v in dimension.when.items()]
    return text + (f", when {' and '.join(when)}" if when else "")


def search(
    name: str | Path | Mapping[str, Any], *overrides: str | Mapping[str, Any]
) -> CheckedSweep:
    """A sweep from `configs/sweeps/` by name, from a path to a YAML file, or as a dict.

    Raises:
        NotFoundError: no such sweep; names the nearest.
        SpecError: with every fault, its key and value.
    """
    if isinstance(name, Mapping):
        tree = dict(name)
        # Its study goes on with the same dict, and is not mixed with another one's.
        return CheckedSweep(
            loader.from_dict(tree, f"sweep-{loader.spec_hash(tree)[:8]}", overrides)
        )
    return CheckedSweep(composed(str(name), overrides))


def composed(name: str, overrides: loader.Overrides = ()) -> loader.Composed:
    """The tree of a sweep. Its dotted keys are names here: they are not resolved."""
    path = Path(name)
    if not (path.suffix == ".yaml" and path.is_file()):
        known = folders.names("configs")
        short = name.removeprefix("configs/").removeprefix("sweeps/").removesuffix(".yaml")
        clean = f"sweeps/{short}"
        if clean not in known:
            sweeps = [n.removeprefix("sweeps/") for n in known if n.startswith("sweeps/")]
            raise NotFoundError(
                f"There is no sweep named {short!r} under configs/sweeps/."
                f"{folders.nearest(short, sweeps)}"
            )
        path, name = known[clean], clean
    document = yaml_text.read(path, folders.display(path))
    if document.faults or not isinstance(document.data, dict):
        raise SpecError(document.faults, about=name)
    return loader.from_dict(document.data, name, overrides)


def attach_sweep(study: str = "last") -> "Sweep":
    """A sweep that exists, running or not.

    Raises:
        NotFoundError: there is none of this name.
    """
    return Sweep(find(study))


class Sweep(Watched):
    """Watch, wait for and stop a sweep. Several of these may look at the same one."""

    folder: SweepFolder

    @property
    def name(self) -> str:
        return f"sweeps/{self.id}"

    @property
    def spec(self) -> SweepSpec:
        tree = loader.from_dict(yaml.safe_load(self.folder.spec.read_text()), self.id)
        return construct(SweepSpec, tree)

    @property
    def result(self) -> dict[str, Any]:
        """As `kdlab sweep --json` prints it.

        Raises:
            RunFailed, RunStopped, NotFoundError: it has none, and why.
        """
        status = self.status
        again = f"    kdlab sweep {self.folder.spec} --study {self.id}"
        match status.get("state"):
            case "finished":
                return dict(status["result"])
            case "stopped":
                raise RunStopped(
                    f"The sweep {self.id} was stopped; it goes on with:\n{again}"
                )
            case "failed" | "lost":
                what = status.get("error") or "its process was killed from outside"
                failure = RunFailed(
                    f"The sweep {self.id} failed: {what}\nLog: {self.folder.log}\n"
                    f"What has ended is kept; after mending the cause it goes on with:\n{again}"
                )
                failure.exit_code = int(status.get("exit_code") or 1)
                raise failure
        raise NotFoundError(f"The sweep {self.id} is {status.get('state')}; no result yet.")

    @property
    def study(self) -> "optuna.Study":
        """Optuna's, to look at: `sweep.study.trials_dataframe()`."""
        return read_study(self.folder, self.spec.storage)

    def rows(self) -> list[dict[str, Any]]:
        """One for each trial so far."""
        from kdlab.tuning.best import row

        try:
            trials = self.study.get_trials(deepcopy=False)
        except (NotFoundError, KeyError):  # the study is being made
            return []
        spec = self.spec
        return [row(trial, spec) for trial in trials if trial.state.name != "WAITING"]

    def table(self, most: int = 15) -> str:
        """The best trials, as text."""
        return text_table_left(*self._cells(most))

    def _cells(self, most: int) -> tuple[list[str], list[list[str]]]:
        spec, rows = self.spec, self.rows()
        names = [o.metric for o in spec.objectives]
        sign = 1 if spec.directions()[0] == "minimize" else -1
        again = {r["retry_of"] for r in rows}

        def place(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
            values = row["values"]
            bad = values is None
            return bad, not row["feasible"], 0.0 if bad else sign * values[names[0]]

        shown = sorted((r for r in rows if r["number"] not in again), key=place)[:most]
        head = ["trial", "state", *names, *spec.space, "from"]
        return head, [
            [
                str(r["number"]),
                r["state"] if r["feasible"] is not False else "breaks a constraint",
                *(_number(None if r["values"] is None else r["values"][n]) for n in names),
                *(_number(r["set"].get(k)) for k in spec.space),
                _short(str(r["error"] or r["why"])),
            ]
            for r in shown
        ]

    def pictures(self) -> list[Path]:
        """PNG files of the study; drawn at its end."""
        return sorted((self.path / "figures").glob("*.png"))

    def save(self, name: str) -> list[Path]:
        """The best as configs/NAME.yaml and cards of the current folder.

        Raises:
            NotFoundError: the sweep has no best yet.
            BadInput: a file of this name is there already.
        """
        check_name(name)
        made = sorted((self.path / "best").rglob("*.yaml"))
        if not made:
            raise NotFoundError(f"The sweep {self.id} has no best yet; it is {self.state}.")
        targets = [
            Path.cwd() / p.relative_to(self.path / "best").parent / f"{name}.yaml"
            for p in made
        ]
        there = [target for target in targets if target.exists()]
        if there:
            raise BadInput(
                f"{folders.display(there[0])} is there already. Take another name."
            )
        for source, target in zip(made, targets, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
        return targets

    def live(self) -> Any:
        """Watch it: in a notebook as a table that follows, in a terminal by lines."""
        from kdlab.tuning.watching import live

        return live(self)

    def __repr__(self) -> str:
        done = sum(r["state"] in ("complete", "pruned", "fail") for r in self.rows())
        return f"Sweep({self.id}, {self.state}, {done} trials ended)"

    def _repr_html_(self) -> str:
        from kdlab.tuning.watching import as_html

        return as_html(self)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _short(text: str, most: int = 70) -> str:
    """What went wrong is on the last line of most errors."""
    last = text.strip().splitlines()[-1].strip()
    return last if len(last) <= most else f"{last[: most - 1]}…"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def printed(result: Mapping[str, Any]) -> str:
    """The end of a sweep in words."""
    best = result["best"]
    lines = [f"Best: trial {best['number']}"]
    lines += [f"  {name} = {_number(value)}" for name, value in best["values"].items()]
    lines += [f"  {key} = {_number(value)}" for key, value in best["set"].items()]
    again = result["confirmed"]
    if again is not None:
        lines.append(f"With fresh seeds {again['seeds']}, {again['metric']}:")
        for who, words in (("best", "the best"), ("as_it_is", "the experiment as it is")):
            found = again[who]
            std = "" if found["std"] is None else f" ± {found['std']:.3g}"
            lines.append(f"  {words}: {_number(found['mean'])}{std}")
        lines.append(f"  (the sweep's own, optimistic: {_number(again['optimistic'])})")
    real = result["real"]
    if real is not None:
        of = real["of_n_training"]
        verdict = "holds" if real["holds"] else "DIFFERS"
        lines.append(
            f"Of N-training: simulated {of['simulated']:.3f}, measured {of['measured']:.3f} "
            f"({verdict})"
        )
    count = result["trials"]
    lines.append(
        f"{count['total']} trials: {count['complete']} complete, {count['pruned']} pruned, "
        f"{count['failed']} failed; {count['tried_again']} were lost and tried again"
    )
    lines += [f"Saved: {path}" for path in result["saved"]]
    return "\n".join(lines)


def as_json(result: Mapping[str, Any]) -> str:
    return json.dumps(result, default=str)
