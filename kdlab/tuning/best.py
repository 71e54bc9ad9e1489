"""Best trials: ranking, saving, and the facts of a sweep's result."""

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

# Folders of cards by part of the experiment; other parts use their name.
_SHELVES = {
    "loss": "losses",
    "student": "students",
    "teacher": "teachers",
    "teacher_pool": "teacher_pools",
}


def feasible(trial: FrozenTrial, spec: SweepSpec) -> bool:
    metrics = metrics_of(trial)
    return all(
        c.metric in metrics and c.excess(metrics[c.metric]) <= 0 for c in spec.constraints
    )


def complete(study: optuna.Study) -> list[FrozenTrial]:
    """Return completed trials."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def ranked(study: optuna.Study, spec: SweepSpec) -> list[FrozenTrial]:
    """Return feasible trials, best first: by the first objective, then by the next."""
    good = [t for t in complete(study) if feasible(t, spec)]
    return sorted(good, key=lambda t: (_costs(t, spec), t.number))


def _costs(trial: FrozenTrial, spec: SweepSpec) -> list[float]:
    """Return the objectives, signed so that less is better."""
    return [s * v for s, v in zip(spec.signs(), trial.values, strict=True)]


def earlier(spec: SweepSpec, space: Space) -> list[Values]:
    """Return the best settings of an earlier sweep; missing keys take the experiment's values.

    Raises:
        NotFoundError: there is no such study.
        BadInput: none of its best settings is in this space.
    """
    warm = spec.warm_start
    if warm is None:
        return []
    folder = find(warm.study)
    source = folder.sweep()
    settings, reason = list[Values](), "it has no completed trial"
    for trial in ranked(read_study(folder, source.storage), source)[: warm.best]:
        values = space.completed(values_of(trial))
        faults = list(space.faults_of(values))
        if faults:
            reason = f"trial {trial.number}: {faults[0]}"
        else:
            settings.append(values)
    if not settings:
        raise BadInput(f"No setting of the sweep {warm.study} fits this space: {reason}.")
    return settings


def best_of(study: optuna.Study, spec: SweepSpec) -> FrozenTrial:
    """Return the best feasible trial; ClusterError where there is none."""
    trials = ranked(study, spec)
    if trials:
        return trials[0]
    if ended := complete(study):
        names = ", ".join(c.metric for c in spec.constraints)
        raise ClusterError(
            f"{len(ended)} trials completed, and none meets the constraints on {names}. "
            "Run more trials (--trials), or loosen the constraints or widen the space in a "
            "sweep with another name (--study)."
        )
    failed = study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
    last = failed[-1].user_attrs.get(ERROR) if failed else "no trial has started"
    raise ClusterError(
        f"No trial completed: {len(failed)} failed. Last error: {last}\n"
        "Each trial's log and events are in its folder under trials/."
    )


def front(study: optuna.Study, spec: SweepSpec) -> list[FrozenTrial]:
    """Return the Pareto front of feasible trials; for one objective, the best."""
    points = [(trial, _costs(trial, spec)) for trial in ranked(study, spec)]
    return [
        trial
        for trial, costs in points
        if not any(rival != costs and all(map(le, rival, costs)) for _, rival in points)
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
    """Compare the best trial with the unchanged experiment; None without both.

    Also None for a simulation: its result is the same with every seed.
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
    """Count trials by how they ended; a retried trial counts once."""
    trials = study.get_trials(deepcopy=False)
    retried = {t.user_attrs.get(RETRY_OF) for t in trials}
    states = [t.state for t in trials if t.number not in retried]
    return TrialCounts(
        total=len(states),
        complete=states.count(TrialState.COMPLETE),
        pruned=states.count(TrialState.PRUNED),
        failed=states.count(TrialState.FAIL),
        tried_again=len(trials) - len(states),
    )


def facts(
    study: optuna.Study,
    spec: SweepSpec,
    chosen: FrozenTrial,
    again: Confirmed | None,
    outcome: Verdict | None,
) -> SweepFacts:
    """Return the facts for checks of a finished sweep."""
    ranges = {}
    for key, value in values_of(chosen).items():
        dim = spec.space[key]
        if dim.low is not None and isinstance(value, int | float) and dim.times is None:
            low, high = dim.ends
            ranges[key] = TunedRange(low=low, high=high, best=float(value), log=dim.log)
    failed = study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
    trials = study.get_trials(deepcopy=False)
    retried = {t.user_attrs.get(RETRY_OF) for t in trials}
    return SweepFacts(
        ranges=ranges,
        ended=counts(study).ended,
        errors=[str(t.user_attrs.get(ERROR)) for t in failed if t.number not in retried],
        verdict=outcome,
        confirmed=again is not None,
        simulated=spec.simulated,
    )


def drop_weights(study: optuna.Study, folder: SweepFolder, chosen: FrozenTrial) -> None:
    """Delete the weights of all trials but the best; results, events and cards stay."""
    for path in (folder.path / "trials").glob("*"):
        if path == folder.trial(chosen.number):
            continue
        for weights in (*path.rglob("*.safetensors"), *path.rglob("*.pt")):
            weights.unlink()


def save(
    folder: SweepFolder, spec: SweepSpec, space: Space, chosen: FrozenTrial
) -> list[Path]:
    """Write the best trial as a config for `kdlab run`, and a card for each tuned part."""
    values = values_of(chosen)
    about = f"Trial {chosen.number} of the sweep {folder.run_id}, the best of its study."
    tree = space.composed(values)
    root = folder.path / "best"
    if spec.simulation is not None:
        path = root / "registry" / "simulations" / f"{folder.run_id}.yaml"
        return [_write_card(path, about, tree.data)]
    assert spec.experiment is not None
    seeds = {"seeds": list(spec.seeds)} if spec.seeds else {}
    overrides = [dict(spec.overrides), seeds, space.changed(values)]
    config = loader.written(spec.experiment, overrides)
    files = [_write_card(root / "configs" / f"{folder.run_id}.yaml", about, config)]
    for part in dict.fromkeys(key.split(".")[0] for key in values):
        part_tree = tree.data.get(part)
        if isinstance(part_tree, dict):
            shelf = _SHELVES.get(part, part)
            path = root / "registry" / shelf / f"{folder.run_id}.yaml"
            files.append(_write_card(path, about, part_tree))
    return files


def _write_card(path: Path, about: str, tree: Mapping[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    card = {"about": about} | {k: v for k, v in tree.items() if k != "about"}
    path.write_text(yaml_text.dump(card), encoding="utf-8")
    return path
