"""The best trials: which they are, how they are kept, the result of a sweep around them."""

from collections.abc import Mapping
from operator import le
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState

from kdlab.checks.sweep import SweepFacts, TunedRange
from kdlab.config import load as loader
from kdlab.config import yaml_text
from kdlab.errors import BadInput, ClusterError
from kdlab.events.sweeps import AS_IT_IS
from kdlab.report.verdict import Verdict, of_setting
from kdlab.tuning.folder import SweepFolder, find, read_study
from kdlab.tuning.outcome import Confirmed, TrialCounts, TrialRow
from kdlab.tuning.space import Space, Values
from kdlab.tuning.spec import SweepSpec
from kdlab.tuning.verdicts import ERROR, RETRY_OF, RUN, VALUES, metrics_of, values_of, why

# Where a part of an experiment lies as a card; all others under their own name.
_SHELVES = {
    "loss": "losses",
    "student": "students",
    "teacher": "teachers",
    "teacher_pool": "teacher_pools",
}


def feasible(trial: FrozenTrial, spec: SweepSpec) -> bool:
    found = metrics_of(trial)
    return all(
        c.metric in found and c.excess(found[c.metric]) <= 0 for c in spec.constraints
    )


def complete(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that ended well."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def ranked(study: optuna.Study, spec: SweepSpec) -> list[FrozenTrial]:
    """Feasible trials, the best first; by the first objective, then by the next."""
    good = [t for t in complete(study) if feasible(t, spec)]
    return sorted(good, key=lambda t: (_costs(t, spec), t.number))


def _costs(trial: FrozenTrial, spec: SweepSpec) -> list[float]:
    """Its objectives, so that less is better."""
    return [s * v for s, v in zip(spec.signs(), trial.values, strict=True)]


def earlier(spec: SweepSpec, space: Space) -> list[Values]:
    """The best settings of an earlier sweep, to be tried first; what it lacked is as it is.

    Raises:
        NotFoundError: there is no such study.
        BadInput: none of its best lies in this space.
    """
    warm = spec.warm_start
    if warm is None:
        return []
    folder = find(warm.study)
    known = folder.sweep()
    found, why = list[Values](), "it has no trial that ended well"
    for trial in ranked(read_study(folder, known.storage), known)[: warm.best]:
        values = space.completed(values_of(trial))
        faults = list(space.faults_of(values))
        if faults:
            why = f"trial {trial.number}: {faults[0]}"
        else:
            found.append(values)
    if not found:
        raise BadInput(f"Nothing of the sweep {warm.study} can be tried here: {why}.")
    return found


def best_of(study: optuna.Study, spec: SweepSpec) -> FrozenTrial:
    """The first of `ranked`; ClusterError where none ended well, or none keeps the constraints."""
    order = ranked(study, spec)
    if order:
        return order[0]
    if ended := complete(study):
        names = ", ".join(c.metric for c in spec.constraints)
        raise ClusterError(
            f"{len(ended)} trials ended, and none keeps the constraints on {names}. "
            "More trials may find one (--trials); or loosen them, or widen the space, in a "
            "sweep of another name (--study)."
        )
    failed = study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
    last = failed[-1].user_attrs.get(ERROR) if failed else "none has begun"
    raise ClusterError(
        f"No trial ended well: {len(failed)} failed. The newest error: {last}\n"
        "Each trial's log and events are in its folder under trials/."
    )


def front(study: optuna.Study, spec: SweepSpec) -> list[FrozenTrial]:
    """Feasible trials that no other beats in all objectives; for one objective the best."""
    points = [(trial, _costs(trial, spec)) for trial in ranked(study, spec)]
    return [
        trial
        for trial, own in points
        if not any(o != own and all(map(le, o, own)) for _, o in points)
    ]


def row(trial: FrozenTrial, spec: SweepSpec) -> TrialRow:
    values = trial.values if trial.state == TrialState.COMPLETE else None
    names = [o.metric for o in spec.objectives]
    return TrialRow(
        number=trial.number,
        state=trial.state.name.lower(),
        why=why(trial),
        set=trial.user_attrs.get(VALUES, {}),
        values=None if values is None else dict(zip(names, values, strict=True)),
        feasible=None if values is None else feasible(trial, spec),
        error=trial.user_attrs.get(ERROR),
        retry_of=trial.user_attrs.get(RETRY_OF),
        run_dir=trial.user_attrs.get(RUN),
        seconds=trial.duration.total_seconds() if trial.duration else None,
    )


def verdict(
    study: optuna.Study, spec: SweepSpec, chosen: FrozenTrial, again: Confirmed | None
) -> Verdict | None:
    """On the best beside the experiment as it is; None where that was not tried, or is the best.

    Nor has a simulation one: it says the same with every seed.
    """
    if spec.simulated or why(chosen) == AS_IT_IS:
        return None
    before = {0: t.values[0] for t in complete(study) if why(t) == AS_IT_IS}  # noqa: B035 - there is one
    after = {0: chosen.values[0]}
    if again is not None:
        both = (again.as_it_is, again.best)
        before, after = (dict(zip(s.seeds, s.values, strict=True)) for s in both)
    metric, confirmed = spec.objectives[0].metric, again is not None
    return of_setting(metric, before, after, -spec.signs()[0], confirmed=confirmed)


def counts(study: optuna.Study) -> TrialCounts:
    """How many ended how; one that was tried again counts once."""
    trials = study.get_trials(deepcopy=False)
    again = {t.user_attrs.get(RETRY_OF) for t in trials}
    own = [t.state for t in trials if t.number not in again]
    return TrialCounts(
        total=len(own),
        complete=own.count(TrialState.COMPLETE),
        pruned=own.count(TrialState.PRUNED),
        failed=own.count(TrialState.FAIL),
        tried_again=len(trials) - len(own),
    )


def facts(
    study: optuna.Study,
    spec: SweepSpec,
    chosen: FrozenTrial,
    again: Confirmed | None,
    told: Verdict | None,
) -> SweepFacts:
    """What checks look at when a sweep has ended."""
    ranges = {}
    for key, value in values_of(chosen).items():
        one = spec.space[key]
        if one.low is not None and isinstance(value, int | float) and one.times is None:
            low, high = one.ends
            ranges[key] = TunedRange(low=low, high=high, best=float(value), log=one.log)
    failed = study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
    every = study.get_trials(deepcopy=False)
    again_as = {t.user_attrs.get(RETRY_OF) for t in every}
    return SweepFacts(
        ranges=ranges,
        ended=counts(study).ended,
        errors=[str(t.user_attrs.get(ERROR)) for t in failed if t.number not in again_as],
        verdict=told,
        confirmed=again is not None,
        simulated=spec.simulated,
    )


def drop_weights(study: optuna.Study, folder: SweepFolder, chosen: FrozenTrial) -> None:
    """Delete the networks of all trials but the best; results, events and cards stay."""
    for path in (folder.path / "trials").glob("*"):
        if path == folder.trial(chosen.number):
            continue
        for weights in (*path.rglob("*.safetensors"), *path.rglob("*.pt")):
            weights.unlink()


def save(
    folder: SweepFolder, spec: SweepSpec, space: Space, chosen: FrozenTrial
) -> list[Path]:
    """As a config that `kdlab run` takes, and as a card for each part that was tuned."""
    values = values_of(chosen)
    about = f"Trial {chosen.number} of the sweep {folder.run_id}, the best of its study."
    tree = space.composed(values)
    root = folder.path / "best"
    if spec.simulation is not None:
        path = root / "registry" / "simulations" / f"{folder.run_id}.yaml"
        return [_written(path, about, tree.data)]
    assert spec.experiment is not None
    seeds = {"seeds": list(spec.seeds)} if spec.seeds else {}
    overrides = [dict(spec.overrides), seeds, space.changed(values)]
    config = loader.written(spec.experiment, overrides)
    files = [_written(root / "configs" / f"{folder.run_id}.yaml", about, config)]
    for part in dict.fromkeys(key.split(".")[0] for key in values):
        whole = tree.data.get(part)
        if isinstance(whole, dict):
            shelf = _SHELVES.get(part, part)
            path = root / "registry" / shelf / f"{folder.run_id}.yaml"
            files.append(_written(path, about, whole))
    return files


def _written(path: Path, about: str, tree: Mapping[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    card = {"about": about} | {k: v for k, v in tree.items() if k != "about"}
    path.write_text(yaml_text.dump(card), encoding="utf-8")
    return path
