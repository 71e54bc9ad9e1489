"""Samplers and pruners of Optuna by short names, with their own options checked."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import optuna

from kdlab.config.folders import nearest
from kdlab.errors import Fault, SpecError
from kdlab.tuning.spec import SweepSpec

_SAMPLERS: dict[str, Callable[..., optuna.samplers.BaseSampler]] = {
    "tpe": optuna.samplers.TPESampler,
    "random": optuna.samplers.RandomSampler,
    "grid": optuna.samplers.RandomSampler,  # all points are enqueued instead
    "qmc": optuna.samplers.QMCSampler,
    "cmaes": optuna.samplers.CmaEsSampler,
    "gp": optuna.samplers.GPSampler,
    "nsga2": optuna.samplers.NSGAIISampler,
    "nsga3": optuna.samplers.NSGAIIISampler,
}
_PRUNERS: dict[str, Callable[..., optuna.pruners.BasePruner]] = {
    "none": optuna.pruners.NopPruner,
    "median": optuna.pruners.MedianPruner,
    "percentile": optuna.pruners.PercentilePruner,
    "successive_halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
    "patient": optuna.pruners.PatientPruner,
    "threshold": optuna.pruners.ThresholdPruner,
    "wilcoxon": optuna.pruners.WilcoxonPruner,
}
_SINGLE = ("cmaes",)  # no several objectives
_NEEDS = {"cmaes": "cmaes"}  # packages that Optuna does not bring


def check(spec: SweepSpec) -> None:
    """Refuse, as a SpecError, what is unknown (naming the nearest) or what Optuna refuses."""
    faults = [*_faults("sampler", spec.sampler, _SAMPLERS)]
    faults += _faults("pruner", spec.pruner, _PRUNERS)
    name = spec.sampler.get("name")
    if name in _SINGLE and len(spec.objectives) > 1:
        faults.append(Fault("sampler.name", f"is {name}, which knows one objective only"))
    if faults:
        raise SpecError(faults, about="the sweep")
    for kind, make in (("sampler", sampler), ("pruner", pruner)):
        try:
            make(spec)
        except ImportError as error:
            message = f"needs a package: pip install {error.name or _NEEDS.get(str(name))}"
            raise SpecError([Fault(kind, message)], about="the sweep") from error
        except (TypeError, ValueError) as error:
            raise SpecError([Fault(kind, str(error))], about="the sweep") from error


def sampler(spec: SweepSpec, before: int = 0) -> optuna.samplers.BaseSampler:
    """For a study that has so many trials: with the same seed it would draw theirs again."""
    options = _options(spec.sampler)
    if isinstance(options.get("seed"), int):
        options["seed"] += before
    return _SAMPLERS[str(spec.sampler["name"])](**options)


def pruner(spec: SweepSpec) -> optuna.pruners.BasePruner:
    options = _options(spec.pruner)
    inner = options.get("wrapped_pruner")
    if isinstance(inner, Mapping):  # of `patient`
        options["wrapped_pruner"] = _PRUNERS[str(inner["name"])](**_options(inner))
    return _PRUNERS[str(spec.pruner.get("name", "none"))](**options)


def _options(said: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if key != "name"}


def _faults(
    where: str, said: Mapping[str, object], known: Mapping[str, Callable[..., object]]
) -> Iterator[Fault]:
    name = said.get("name")
    if name not in known:
        message = f"is {name!r}.{nearest(str(name), known)} All: {', '.join(known)}"
        yield Fault(f"{where}.name", message)
        return
    allowed = {
        p.name: str(p.annotation)
        for p in inspect.signature(known[str(name)]).parameters.values()
        if "Callable" not in str(p.annotation)  # YAML cannot hold these
    }
    for option, value in _options(said).items():
        if option not in allowed:
            message = f"{name} has no such option.{nearest(option, allowed)}"
            yield Fault(f"{where}.{option}", message)
        elif isinstance(value, str) and "str" not in allowed[option]:
            yield Fault(f"{where}.{option}", f"is {value!r}, must be {allowed[option]}")
    inner = said.get("wrapped_pruner")
    if isinstance(inner, Mapping):
        yield from _faults(f"{where}.wrapped_pruner", inner, known)
