from dataclasses import dataclass
from typing import Annotated

import pytest

from kdlab.config import Fault, Range, Spec, SpecError
from kdlab.config.spec import ranges_of


@dataclass(frozen=True, kw_only=True)
class Oven(Spec):
    heat: Annotated[float, Range(gt=0, le=300)] = 180.0
    rack: Annotated[int, Range(ge=1)] | None = None
    minutes: tuple[Annotated[int, Range(ge=1)], ...] = (5,)

    def cross_faults(self):
        if self.heat > 250 and self.rack == 1:
            yield Fault("rack", "is 1 and would burn")


def test_reports_every_range_fault_at_once():
    with pytest.raises(SpecError) as caught:
        Oven(heat=0, rack=0, minutes=(1, 0))
    assert [f.key for f in caught.value.faults] == ["heat", "rack", "minutes"]
    assert "must be > 0" in str(caught.value)


def test_checks_fields_against_each_other():
    with pytest.raises(SpecError, match="would burn"):
        Oven(heat=260, rack=1)


def test_ranges_are_readable_by_others():
    assert ranges_of(Oven)["heat"] == Range(gt=0, le=300)
    assert str(ranges_of(Oven)["heat"]) == "> 0, <= 300"


def test_none_passes_a_range():
    assert Oven(rack=None).to_dict() == {"heat": 180.0, "rack": None, "minutes": [5]}
