"""Many fuzzed configs, with the time and the memory that each took: `make fuzz`.

Exits with 1 if one was a traceback, took more than 2 s of a core or more than 200 MB.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

from hostile_configs import OVERRIDES, damaged
from hypothesis import HealthCheck, Phase, given, seed, settings

import kdlab
from kdlab.errors import BadInput
from kdlab.tuning.checked import search

TIME_S, MEMORY_MB = 2.0, 200.0


class Census:
    """Counts, times and memory of the cases."""

    def __init__(self) -> None:
        self.count, self.refused, self.unexpected = 0, 0, 0
        self.times: list[float] = []
        self.largest_mb = 0.0  # that the process grew by in one case

    def load(self, call, *arguments) -> None:
        before, started = _peak_mb(), time.process_time()
        try:
            call(*arguments)
        except BadInput as error:
            self.refused += 1
            self._look_at("report this defect" in str(error), arguments)
        except Exception as error:
            self._look_at(True, (*arguments, error))
        self.count += 1
        self.times.append(time.process_time() - started)
        self.largest_mb = max(self.largest_mb, _peak_mb() - before)
        if self.times[-1] > TIME_S:
            print(f"{self.times[-1]:.1f} s: {arguments!r:.300}")

    def _look_at(self, bad: bool, arguments) -> None:
        if bad:
            self.unexpected += 1
            print(f"unexpected: {arguments!r:.400}")


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(cases: int, begin: int) -> int:
    for words in ([], ["student.type=none"]):  # imports count for no case
        Census().load(kdlab.load, "quickstart", *words)
    census = Census()
    path = Path(tempfile.mkdtemp()) / "it.yaml"
    patient = settings(
        max_examples=cases // 2,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    @seed(begin)
    @patient
    @given(OVERRIDES)
    def overrides(words) -> None:
        census.load(kdlab.load, "quickstart", *words)

    @seed(begin)
    @patient
    @given(damaged())
    def files(raw) -> None:
        path.write_bytes(raw)
        sweep = b"trials" in raw or b"space" in raw
        census.load(search if sweep else kdlab.load, str(path))

    overrides()
    files()
    slow = sum(t > TIME_S for t in census.times)
    print(
        f"{census.count} cases, {census.refused} refused, {census.unexpected} unexpected, "
        f"{slow} over {TIME_S:g} s (longest {max(census.times):.2f} s), "
        f"largest growth {census.largest_mb:.0f} MB"
    )
    return int(census.unexpected > 0 or slow > 0 or census.largest_mb > MEMORY_MB)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
