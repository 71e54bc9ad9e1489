"""A benchmark of several parts, all of which or some are measured."""

from collections.abc import Callable, Collection, Mapping

from kdlab.errors import BadInput
from kdlab.report.figures import Figure, Report, report

Parts = Mapping[str, Callable[[], list[Figure]]]


def measured(name: str, parts: Parts, only: Collection[str]) -> Report:
    """The figures of all parts, or of those in `only`, in their order.

    Raises:
        BadInput: it has no such part.
    """
    check_parts(name, parts, only)
    chosen = [part for label, part in parts.items() if not only or label in only]
    return report(name, [found for part in chosen for found in part()])


def check_parts(name: str, parts: Collection[str], only: Collection[str]) -> None:
    """Refuse what is no part of it.

    Raises:
        BadInput: it has no such part.
    """
    unknown = set(only) - set(parts)
    if unknown:
        raise BadInput(
            f"bench {name} has no part {', '.join(sorted(unknown))}; it has {', '.join(parts)}."
        )
