"""Measure tests: CPU seconds of all processes that each starts, and seconds by the clock.

    pytest --costs build/costs/slow.csv      a row for each test, the dearest first
    python tests/cpu_seconds.py build/costs/*.csv > tests/costs.csv       the 50 dearest of all

Each process of tests is put into a control group of its own, whose clock counts children that
nobody waits for, too. Where the system refuses that, children count once they are waited for.
A test that takes over 6 CPU seconds has a reason in its mark; tests/rules holds the kept table to
that, since a busy machine must not fail a test.
"""

import contextlib
import csv
import os
import resource
import sys
from pathlib import Path

import pytest

COLUMNS = ("test", "cpu_s", "wall_s", "setup_cpu_s", "marks")
DEAR_CPU_S = 6.0
KEPT = 50
TIERS = ("processes", "slow", "nightly")
_GROUPS = Path("/sys/fs/cgroup")


class CpuClock:
    """CPU seconds of this process and of whatever it starts."""

    def __init__(self):
        old = (_GROUPS / "cpuacct").is_dir()
        self._all = _GROUPS / "cpuacct" if old else _GROUPS
        self._group = self._all / f"kdlab-tests-{os.getpid()}"
        self._usage = self._group / ("cpuacct.usage" if old else "cpu.stat")
        try:
            self._group.mkdir()
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
            self()
        except OSError:  # no control groups, or not for us
            self._usage = None

    def __call__(self):
        if self._usage is None:
            kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
            used = [resource.getrusage(kind) for kind in kinds]
            return sum(u.ru_utime + u.ru_stime for u in used)
        words = self._usage.read_text().split()  # nanoseconds, or "usage_usec 123 ..."
        return int(words[0]) / 1e9 if len(words) == 1 else int(words[1]) / 1e6

    def close(self):
        with contextlib.suppress(OSError):  # there is none, or somebody is in it still
            (self._all / "cgroup.procs").write_text(str(os.getpid()))
            self._group.rmdir()


class Costs:
    """Measures in each process of tests; the one that reports collects and writes."""

    def __init__(self, path):
        self.path, self.rows, self.clock = Path(path), {}, CpuClock()
        self._last = self.clock()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self):
        self._last = self.clock()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        report = yield
        now = self.clock()
        report.cost = now - self._last, marks_of(item)
        self._last = now
        return report

    def pytest_runtest_logreport(self, report):
        if hasattr(report, "cost"):
            row = self.rows.setdefault(report.nodeid, {})
            cpu_s, row["marks"] = report.cost
            row[report.when] = cpu_s, report.duration

    def pytest_terminal_summary(self, terminalreporter):
        table = [self._row(name, row) for name, row in self.rows.items()]
        table.sort(key=lambda row: -float(row["cpu_s"]))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", newline="") as file:
            write(file, table)
        for row in table:
            if float(row["cpu_s"]) > DEAR_CPU_S and ":" not in row["marks"]:
                terminalreporter.write_line(
                    f"{row['test']} took {row['cpu_s']} CPU s: say in its mark why"
                )

    def pytest_unconfigure(self):
        self.clock.close()

    @staticmethod
    def _row(name, row):
        call, setup, teardown = (
            row.get(phase, (0.0, 0.0)) for phase in ("call", "setup", "teardown")
        )
        figures = (call[0] + teardown[0], call[1], setup[0])
        return dict(
            zip(COLUMNS, (name, *(f"{f:.2f}" for f in figures), row["marks"]), strict=True)
        )


def marks_of(item):
    """Marks of tiers, each with its reason where it has one: "slow: three Pythons"."""
    marks = [m for m in item.iter_markers() if m.name in TIERS]
    return "; ".join(": ".join((m.name, *map(str, m.args[:1]))) for m in marks)


def write(file, rows):
    table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)


def pytest_addoption(parser):
    parser.addoption("--costs", metavar="FILE", help="write what each test costs")


def pytest_configure(config):
    if path := config.getoption("--costs"):
        config.pluginmanager.register(Costs(path), "costs")


def main(paths):
    rows = {}  # a test that ran twice counts with its dearer run
    for path in paths:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                before = rows.get(row["test"], row)
                rows[row["test"]] = max(before, row, key=lambda r: float(r["cpu_s"]))
    write(sys.stdout, sorted(rows.values(), key=lambda row: -float(row["cpu_s"]))[:KEPT])


if __name__ == "__main__":
    main(sys.argv[1:])
