"""The search space: converts a sweep's keys and ranges to Optuna's parameters and back.

It checks all keys against their specs before anything starts: each must exist, accept
numbers or choices as the space says, and allow the whole range.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TypeGuard

import optuna

from kdlab.config import load as loader
from kdlab.config.check import construct
from kdlab.config.folders import nearest
from kdlab.config.limits import refusal
from kdlab.config.load import Composed
from kdlab.config.spec import Spec
from kdlab.errors import Fault, NotFoundError, SpecError
from kdlab.experiment.spec import ExperimentSpec
from kdlab.simulate.kind import SimulationSpec
from kdlab.tuning.spec import Dimension, SweepSpec
from kdlab.tuning.spec_field import SpecField, field_at

_MAX_GRID = 10_000
Values = dict[str, object]  # dotted key -> value, as in YAML


class Space:
    """The search space of one sweep; construction checks it.

    Raises:
        SpecError: lists all faults of the space, with key and value.
        NotFoundError: there is no such experiment or simulation.
    """

    def __init__(self, spec: SweepSpec) -> None:
        self.spec = spec
        self.leaves: dict[str, SpecField] = {}
        self.base = self._build({})
        self.flat = dict(loader.flat(self.base.to_dict()))
        faults = list[Fault]()
        for key, dimension in spec.space.items():
            faults += [Fault(f"space.{key}", m) for m in self._faults(key, dimension)]
        if faults:
            raise SpecError(faults, about="the sweep")
        for i, values in enumerate(spec.enqueue):
            faults += [Fault(f"enqueue.{i}", m) for m in self.faults_of(values)]
        if faults:
            raise SpecError(faults, about="the sweep")

    # Values of trials

    def composed(
        self, values: Mapping[str, object], *more: Mapping[str, object]
    ) -> Composed:
        """Compose the experiment or simulation with these values."""
        spec = self.spec
        overrides = [dict(spec.overrides), self.changed(values), *more]
        if spec.seeds:
            overrides.insert(1, {"seeds": list(spec.seeds)})
        if spec.simulation is not None:
            name = spec.simulation.removeprefix("simulations/")
            return loader.compose_card(f"simulations/{name}", overrides)
        assert spec.experiment is not None
        return loader.compose(spec.experiment, overrides)

    def changed(self, values: Mapping[str, object]) -> Values:
        """Drop parts that are set already: naming one resets its other keys to defaults."""
        fields = self.leaves
        return {
            key: value
            for key, value in values.items()
            if key not in fields or fields[key].part is None or value != fields[key].value
        }

    def _build(self, values: Mapping[str, object]) -> Spec:
        kind = SimulationSpec if self.spec.simulated else ExperimentSpec
        return construct(kind, self.composed(values))

    def suggest(self, trial: optuna.trial.Trial) -> Values:
        """Return a trial's values; keys whose `when` does not hold are left out."""
        values: Values = {}
        for key, dimension in self.spec.space.items():
            if _exists(dimension, values):
                sampled = self._sample(trial, key, dimension)
                values[key] = self._scale(key, dimension, sampled, values)
        return values

    def _sample(self, trial: optuna.trial.Trial, key: str, dimension: Dimension) -> object:
        name = parameter(key, dimension)
        if dimension.choices is not None:
            return trial.suggest_categorical(name, list(dimension.choices))
        (low, high), step, log = dimension.ends, dimension.step, dimension.log
        if not self.is_whole(key) or dimension.times is not None:
            return trial.suggest_float(name, low, high, step=step, log=log)
        return trial.suggest_int(name, int(low), int(high), step=int(step or 1), log=log)

    def _scale(
        self, key: str, dimension: Dimension, sampled: object, values: Values
    ) -> object:
        if dimension.times is None:
            return sampled
        scaled = number(sampled) * number(values[dimension.times])
        return round(scaled) if self.is_whole(key) else scaled

    def is_whole(self, key: str) -> bool:
        return self.leaves[key].kinds == (int,)

    def parameters(self, values: Mapping[str, object]) -> Values:
        """Return values by Optuna's parameter names, to enqueue them."""
        parameters: Values = {}
        for key, value in values.items():
            dimension = self.spec.space[key]
            factor = None if dimension.times is None else values[dimension.times]
            sampled = value if factor is None else number(value) / number(factor)
            parameters[parameter(key, dimension)] = sampled
        return parameters

    def as_it_is(self) -> Values | None:
        """Return the unchanged experiment's values; None where they are outside the space."""
        values: Values = {}
        for key, dimension in self.spec.space.items():
            if _exists(dimension, values):
                values[key] = self._unchanged_value(key, dimension)
        return None if any(self.faults_of(values)) else values

    def _unchanged_value(self, key: str, dimension: Dimension) -> object:
        """Return the unchanged value of a key; for a part, the choice that builds the same."""
        leaf = self.leaves[key]
        choices = dimension.choices or ()
        if leaf.part is None or leaf.value in choices:
            return leaf.value
        for choice in choices:
            if field_at(self._build({key: choice}), key).part == leaf.part:
                return choice
        return leaf.value

    def completed(self, values: Mapping[str, object]) -> Values:
        """Return values for all keys; missing ones take the experiment's."""
        completed: Values = {}
        for key, dimension in self.spec.space.items():
            if _exists(dimension, completed):
                completed[key] = values.get(key, self.leaves[key].value)
        return completed

    def grid(self) -> list[Values]:
        """Return all combinations; SpecError for a range without steps, or too many."""
        columns, size = {}, 1
        for key, dimension in self.spec.space.items():
            columns[key] = self._points(key, dimension)
            size *= len(columns[key])
        if size > _MAX_GRID:
            message = f"has {size} combinations; at most {_MAX_GRID}"
            raise SpecError([Fault("space", message)], about="the sweep")
        unique = dict[str, Values]()
        for row in product(*columns.values()):
            values: Values = {}
            for (key, dimension), sampled in zip(self.spec.space.items(), row, strict=True):
                if _exists(dimension, values):
                    values[key] = self._scale(key, dimension, sampled, values)
            unique.setdefault(repr(values), values)  # duplicates: keys that do not exist
        return list(unique.values())

    def _points(self, key: str, dimension: Dimension) -> Sequence[object]:
        if dimension.choices is not None:
            return list(dimension.choices)
        low, high = dimension.ends
        integral = self.is_whole(key) and dimension.times is None
        step = dimension.step or (1.0 if integral else None)
        if step is None or dimension.log:
            message = "has no steps; a grid needs step, or choices"
        elif (steps := (high - low) / step) >= _MAX_GRID:
            message = f"has {steps:.3g} steps; a grid has at most {_MAX_GRID} points"
        else:
            points = [low + i * step for i in range(int(steps + 1e-9) + 1)]
            return [int(p) for p in points] if integral else points
        raise SpecError([Fault(f"space.{key}", message)], about="the sweep")

    # Faults

    def _faults(self, key: str, dimension: Dimension) -> Iterator[str]:
        conditions = {k: _as_tuple(v)[0] for k, v in dimension.when.items()}
        for condition, required in dimension.when.items():
            choices = self.spec.space[condition].choices
            if choices is not None and not any(v in choices for v in _as_tuple(required)):
                yield f"exists when {condition} has a value that is not among its choices"
                return
        try:
            tree = self._build(conditions) if conditions else self.base
            leaf = self.leaves[key] = field_at(tree, key)
        except (SpecError, NotFoundError) as error:
            yield _short(error)
            return
        if dimension.choices is None:
            yield from self._range_faults(leaf, dimension)
        for choice in dimension.choices or ():
            yield from self._choice_faults(leaf, choice, conditions)

    def _range_faults(self, leaf: SpecField, dimension: Dimension) -> Iterator[str]:
        if leaf.kinds not in ((int,), (float,)):
            accepted = ", ".join(map(str, leaf.choices)) or _kind_names(leaf.kinds)
            yield f"takes {accepted}, and the space has a range of numbers; set choices"
            return
        if leaf.kinds == (int,) and not float(dimension.step or 1).is_integer():
            yield f"step is {dimension.step:g}, and the key takes whole numbers"
        if dimension.times is not None:  # the product is checked with each trial
            yield from self._times_faults(dimension)
            return
        for name in ("low", "high"):
            end = getattr(dimension, name)
            if leaf.kinds == (int,) and not _is_whole(end):
                yield f"{name} is {end:g}, and the key takes whole numbers (64 bits)"
            message = None if leaf.limit is None else leaf.limit.fault(end)
            if message:
                yield f"{name} {message} (the key's own range)"

    def _times_faults(self, dimension: Dimension) -> Iterator[str]:
        assert dimension.times is not None
        base = self.spec.space[dimension.times]
        if not dict(base.when).items() <= dict(dimension.when).items():
            yield f"is a factor of {dimension.times}, which exists only when {dict(base.when)}"
        if not all(_is_number(c) and c > 0 for c in base.choices or ()):
            yield f"is a factor of {dimension.times}, whose choices are not all numbers above 0"
        if base.low is not None and base.low <= 0:
            yield f"is a factor of {dimension.times}, whose low is {base.low:g}, not above 0"

    def _choice_faults(
        self, leaf: SpecField, choice: object, conditions: Mapping[str, object]
    ) -> Iterator[str]:
        if leaf.choices:
            if choice not in leaf.choices:
                yield f"{choice!r} is none of {', '.join(map(str, leaf.choices))}"
        elif leaf.kinds in ((), (str,)):
            # A part, which must fit the rest; or a name, such as an optimiser's.
            try:
                self._build({**conditions, leaf.key: choice})
            except (SpecError, NotFoundError) as error:
                if not leaf.kinds:
                    yield f"{choice!r}: {_short(error)}"
                elif isinstance(error, SpecError):
                    yield from (f.message for f in error.faults if f.key == leaf.key)
        elif not _fits(choice, leaf.kinds):
            yield f"{choice!r} is not {_kind_names(leaf.kinds)}"
        elif leaf.limit and _is_number(choice) and (message := leaf.limit.fault(choice)):
            yield f"the choice {message} (the key's own range)"

    def faults_of(self, values: Mapping[str, object]) -> Iterator[str]:
        """Yield why values cannot be enqueued."""
        for key in values:
            if key not in self.spec.space:
                yield f"{key} is not in the space.{nearest(key, self.spec.space)}"
                return
        for key, dimension in self.spec.space.items():
            exists = _exists(dimension, values)
            if exists != (key in values):
                yield f"{key} {'is missing' if exists else 'does not exist with these values'}"
            elif exists:
                yield from self._value_faults(key, dimension, values)

    def _value_faults(
        self, key: str, d: Dimension, values: Mapping[str, object]
    ) -> Iterator[str]:
        value = values[key]
        if d.choices is not None:
            if value not in d.choices:
                yield f"{key} is {value!r}, none of {', '.join(map(str, d.choices))}"
            return
        if not _is_number(value):
            yield f"{key} is {value!r}, must be a number"
            return
        if d.times is not None and not (
            _is_number(factor := values.get(d.times)) and factor > 0
        ):
            yield f"{key} is a factor of {d.times}, which must be set and above 0"
            return
        sampled = value if d.times is None else value / number(values[d.times])
        low, high = d.ends
        if not low - 1e-9 <= sampled <= high + 1e-9:
            of = f" times {d.times}" if d.times else ""
            yield f"{key} is {sampled:g}{of}, must be {low:g} to {high:g}"


def parameter(key: str, dimension: Dimension) -> str:
    """Return Optuna's parameter name; a factor is not the value of the key."""
    return key if dimension.times is None else f"{key} / {dimension.times}"


def _exists(dimension: Dimension, values: Mapping[str, object]) -> bool:
    return all(
        k in values and values[k] in _as_tuple(required)
        for k, required in dimension.when.items()
    )


def _as_tuple(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(number: float) -> bool:
    return float(number).is_integer() and refusal(int(number)) is None


def number(value: object) -> int | float:
    """Narrow the type of a value that is a number."""
    assert isinstance(value, int | float)
    return value


def _fits(choice: object, kinds: tuple[type, ...]) -> bool:
    if choice is None:
        return True  # building the trial checks whether the key may be null
    if _is_number(choice):
        return float in kinds or (int in kinds and _is_whole(choice))
    return type(choice) in kinds


def _kind_names(kinds: tuple[type, ...]) -> str:
    names = {
        float: "a number",
        int: "a whole number (64 bits)",
        bool: "true or false",
        str: "text",
    }
    return " or ".join(names[k] for k in kinds) or "a part with its own type"


def _short(error: Exception) -> str:
    if isinstance(error, SpecError):
        return "; ".join(f"{f.key}: {f.message}" for f in error.faults)
    return str(error)
