"""The best of several settings of a method, chosen on validation."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

EQUAL_BYTES = " at equal bytes"
_VALIDATED = "global_validation_top1/"  # as methods/ensemble reports it


def settings_of(name: str, sources: Iterable[str]) -> list[str]:
    """Return the sources that are settings of a method: those that begin with its name."""
    return [s for s in sources if s == name or s.startswith(f"{name}_")]


def best_candidates(
    values: Mapping[str, Sequence[float]], names: Sequence[str], within: str | None
) -> dict[str, str]:
    """Return each name's source that is best on validation; with `within`, at equal bytes too."""
    score = {
        name.removeprefix(_VALIDATED): mean(top1)
        for name, top1 in values.items()
        if name.startswith(_VALIDATED)
    }
    taken_in = {source: mean(values[f"exchanged_mb/{source}"]) for source in score}
    chosen = {}
    for name in names:
        every = settings_of(name, score)
        cheap = [s for s in every if within and taken_in[s] <= taken_in[within]]
        for label, candidates in ((name, every), (f"{name}{EQUAL_BYTES}", cheap)):
            if candidates:
                chosen[label] = max(candidates, key=lambda source: score[source])
    return chosen


def of_the_best(
    values: Mapping[str, Sequence[float]], chosen: Mapping[str, str]
) -> dict[str, Sequence[float]]:
    return {
        f"{kind}/best of {label}": numbers
        for label, source in chosen.items()
        for kind in ("global", "exchanged_mb", "seconds")
        if (numbers := values.get(f"{kind}/{source}"))
    }
