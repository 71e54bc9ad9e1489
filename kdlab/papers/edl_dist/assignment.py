"""The assignment of teachers to a student: the static half of EDL-Dist's scheduling.

Section 3.2, Line 1 of Algorithm 1: n = t_s / t_t, rounded up. The printed fraction is
broken in both versions of the paper; that the student's rate is on top follows from the
dimension, from Table 3 of the journal (57.14 / 4.46 -> 13 cores, 12 are short, 16 are
enough) and from section 4.3 (5 P4 for one V100).

Unlike teachers (beyond the paper, which assumes one type): as few as cover t_s. The
fastest come first; the last one is the slowest that covers what is missing, so that a
fast teacher is not spent on a small rest.
"""

import math
from collections.abc import Mapping


def static_share(t_s: float, t_t: float) -> int:
    """n, the number of teachers that one student needs; at least 1.

    Args:
        t_s: samples/s of the student that never waits for soft labels.
        t_t: samples/s of one teacher that never waits for inputs.

    Raises:
        ValueError: a rate is not positive.
    """
    if not (t_s > 0 and t_t > 0):
        raise ValueError(f"rates must be > 0 samples/s, got t_s={t_s} and t_t={t_t}")
    # 3.2: "we schedule [n] Teacher resources to each Student resource"
    return max(1, math.ceil(t_s / t_t - 1e-9))  # 1e-9: 3.0000000000000004 is 3


def next_teacher(free: Mapping[str, float], missing: float) -> str | None:
    """The slowest free teacher that covers `missing` samples/s alone, else the fastest."""
    # 3.2: "resources in the same module ... are of the same type"; here types may be mixed
    covers = [(t_t, name) for name, t_t in free.items() if t_t >= missing * (1 - 1e-9)]
    if covers:
        return min(covers)[1]
    return min(free, key=lambda name: (-free[name], name), default=None)


def nearest(free: Mapping[str, float], shares: Mapping[str, float]) -> Mapping[str, float]:
    """Free teachers with the largest share of the data on their machines, to a tenth.

    The others would have to fetch data first, from remote storage or from the student. Beyond the
    paper, whose students send the inputs (3.1). `shares` are 0 to 1, by name as `free`.
    """
    tenths = {name: round(10 * shares[name]) for name in free}
    most = max(tenths.values(), default=0)
    return {name: t_t for name, t_t in free.items() if tenths[name] == most}


def choose(free: Mapping[str, float], t_s: float) -> list[str]:
    """Names of the teachers to assign; all of them if they fall short of t_s.

    Args:
        free: t_t in samples/s by name, of teachers that no student holds.
        t_s: samples/s still to be covered; 0 or less needs none.
    """
    left, chosen, missing = dict(free), list[str](), t_s
    while missing > 1e-9 * t_s:  # n of Line 1, where all are alike
        name = next_teacher(left, missing)
        if name is None:
            break
        chosen.append(name)
        missing -= left.pop(name)
    return chosen
