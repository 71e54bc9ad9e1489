"""Optuna's samplers and pruners by short names, with checked options."""

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
_ABOVE_0 = ("n_ei_candidates", "popsize", "sigma0")  # Optuna fails on others in a trial
_SINGLE = ("cmaes",)  # one objective only
_NEEDS = {"cmaes": "cmaes"}  # packages that Optuna does not install


def check(spec: SweepSpec) -> None:
    """Raise SpecError for a sampler or pruner that is unknown or that Optuna refuses."""
    faults = [*_faults("sampler", spec.sampler, _SAMPLERS)]
    faults += _faults("pruner", spec.pruner, _PRUNERS)
    name = spec.sampler.get("name")
    if name in _SINGLE and len(spec.objectives) > 1:
        faults.append(Fault("sampler.name", f"is {name}, which takes one objective only"))
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
    """Create the sampler; `before` trials shift the seed, which would repeat their values."""
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


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "name"}


def _kinds(value: object) -> tuple[str, ...]:
    """Words in the annotations of parameters that take the value."""
    kind = type(value).__name__
    more = {"NoneType": "None", "int": "float", "dict": "Pruner"}  # `wrapped_pruner`
    return (kind, more.get(kind, kind))


def _faults(
    part: str, chosen: Mapping[str, object], names: Mapping[str, Callable[..., object]]
) -> Iterator[Fault]:
    name = chosen.get("name")
    if not isinstance(name, str) or name not in names:
        message = f"is {name!r}.{nearest(str(name), names)} All: {', '.join(names)}"
        yield Fault(f"{part}.name", message)
        return
    allowed = {
        p.name: str(p.annotation)
        for p in inspect.signature(names[name]).parameters.values()
        if "Callable" not in str(p.annotation)  # YAML cannot hold these
    }
    for option, value in _options(chosen).items():
        if option not in allowed:
            message = f"{name} has no such option.{nearest(option, allowed)}"
            yield Fault(f"{part}.{option}", message)
        elif not any(kind in allowed[option] for kind in _kinds(value)):
            yield Fault(f"{part}.{option}", f"is {value!r}, must be {allowed[option]}")
        elif option in _ABOVE_0 and isinstance(value, int | float) and value <= 0:
            yield Fault(f"{part}.{option}", f"is {value}, must be above 0")
    wrapped = chosen.get("wrapped_pruner")
    if isinstance(wrapped, Mapping):
        yield from _faults(f"{part}.wrapped_pruner", wrapped, names)
