"""Prints the newest versions that kdlab's bounds allow, as pip would install them today.

Nothing is installed: pip resolves `.[dev]` for an empty environment and reports.
Usage, with the pip that CI has: .venv/bin/python .ci/constraints.py > constraints.txt
"""

import datetime
import json
import platform
import subprocess
import sys

RESOLVE = (
    *("-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"),
    *("--no-input", "--report", "-", ".[dev]"),
)


def main() -> None:
    done = subprocess.run(
        [sys.executable, *RESOLVE], stdout=subprocess.PIPE, text=True, check=True
    )
    chosen = [entry["metadata"] for entry in json.loads(done.stdout)["install"]]
    pins = {entry["name"].lower(): entry["version"] for entry in chosen}
    pins.pop("kdlab")
    if built := [f"{name}=={v}" for name, v in pins.items() if "+" in v]:
        # A local build (+cpu) is on nobody else's index, and torchvision fails beside it.
        raise SystemExit(f"Local builds cannot be pinned: {', '.join(built)}")
    python = platform.python_version()
    day = datetime.datetime.now(datetime.UTC).date()
    print(
        f"# Made by `make constraints` on {day} with Python {python}; not edited by hand."
    )
    print(
        "# What CI installs with: the same versions each time, until somebody makes it anew."
    )
    for name in sorted(pins):
        print(f"{name}=={pins[name]}")


if __name__ == "__main__":
    main()
