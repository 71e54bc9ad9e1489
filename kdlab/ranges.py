"""Allowed values of numbers, as data for specs, sliders, sweeps and the papers' settings."""

import operator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Allowed values of a number; all bounds that are set must hold."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def fault(self, value: float) -> str | None:
        checks = (
            (self.ge, ">=", operator.ge),
            (self.gt, ">", operator.gt),
            (self.le, "<=", operator.le),
            (self.lt, "<", operator.lt),
        )
        broken = [
            f"{sign} {bound:g}"
            for bound, sign, holds in checks
            if bound is not None and not holds(value, bound)
        ]
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        if shown in ("nan", "inf", "-inf"):
            return f"is {shown}, must be a finite number"
        return f"is {shown}, must be {' and '.join(broken)}" if broken else None

    def __str__(self) -> str:
        signs = {">=": self.ge, ">": self.gt, "<=": self.le, "<": self.lt}
        return ", ".join(f"{s} {b:g}" for s, b in signs.items() if b is not None)


POSITIVE = Range(gt=0)
NOT_NEGATIVE = Range(ge=0)
SHARE = Range(ge=0, lt=1)
