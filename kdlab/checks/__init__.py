"""Checks with codes, of a data set, a teacher, a run, a sweep or a machine.

`kdlab data`, `new`, `run`, `examine`, `sweep` and the live view show the same findings.
"""

from kdlab.checks import data, machine, sweep, teacher, training
from kdlab.checks.check import CodedCheck, check_of, checked

__all__ = [
    "CodedCheck",
    "check_of",
    "checked",
    "data",
    "machine",
    "sweep",
    "teacher",
    "training",
]
