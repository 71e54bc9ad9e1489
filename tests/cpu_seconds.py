"""What each test costs: wall seconds, and CPU seconds of all processes that it starts.

Each process of tests is put into a control group of its own, whose clock also counts children
that nobody waits for. Where the system refuses that, children count once they are waited for.
`--costs FILE` writes a table, dearest first.
"""

import csv
import os
import resource
import time
from pathlib import Path

import pytest

_GROUPS = Path("/sys/fs/cgroup")


class Clock:
    """CPU seconds of this process and whatever it starts."""

    def __init__(self, name):
        self._usage = self._nanoseconds = None
        v1, v2 = _GROUPS / "cpuacct", _GROUPS
        try:
            folder = (v1 if v1.is_dir() else v2) / name
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.procs").write_text(str(os.getpid()))
            usage = folder / ("cpuacct.usage" if v1.is_dir() else "cpu.stat")
            usage.read_text()
            self._usage = usage
        except OSError:  # no control groups, or not for us
            self._usage = None

    def __call__(self):
        if self._usage is None:
            kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
            used = [resource.getrusage(kind) for kind in kinds]
            return sum(u.ru_utime + u.ru_stime for u in used)
        first = self._usage.read_text().split()
        return int(first[0]) / 1e9 if len(first) == 1 else int(first[1]) / 1e6


class Costs:
    """Measures in each process of tests; the one that reports collects and writes."""

    def __init__(self, path):
        self.path, self.rows = path, {}
        self.clock = Clock(f"kdlab-tests-{os.getpid()}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        now = self.clock()
        used, item._cpu = now - getattr(item, "_cpu", now), now
        report.user_properties = [
            ("cpu_s", used),
            ("marks", sorted({m.name for m in item.iter_markers()})),
        ]
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        item._cpu = self.clock()

    def pytest_runtest_logreport(self, report):
        facts = dict(report.user_properties)
        row = self.rows.setdefault(report.nodeid, {"marks": facts.get("marks", [])})
        row[report.when] = (report.duration, facts.get("cpu_s", 0.0))

    def pytest_sessionfinish(self, session):
        if os.environ.get("PYTEST_XDIST_WORKER") or not self.path:
            return
        with Path(self.path).open("w", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["test", "cpu_s", "wall_s", "setup_cpu_s", "marks"])
            for name, row in sorted(
                self.rows.items(), key=lambda r: -r[1].get("call", (0, 0))[1]
            ):
                call, setup, down = (
                    row.get(w, (0.0, 0.0)) for w in ("call", "setup", "teardown")
                )
                table.writerow(
                    [
                        name,
                        f"{call[1] + down[1]:.2f}",
                        f"{call[0]:.2f}",
                        f"{setup[1]:.2f}",
                        " ".join(
                            m for m in row["marks"] if m in ("processes", "slow", "nightly")
                        ),
                    ]
                )


def pytest_addoption(parser):
    parser.addoption("--costs", help="write what each test costs into this file")


def pytest_configure(config):
    config.pluginmanager.register(Costs(config.getoption("--costs")), "costs")
