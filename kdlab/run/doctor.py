"""`kdlab doctor`: what works on this machine, what does not, and what to install."""

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

import psutil

from kdlab.config.home import home, runs_folder
from kdlab.report.table import text_table
from kdlab.run import reach


class Finding(TypedDict):
    what: str
    state: str  # ok, limited, missing
    found: str
    advice: str


def examine() -> list[Finding]:
    findings = [_python(), *map(_package, _PACKAGES), _gpu(), _memory()]
    findings += [
        _writable("data and teachers", home()),
        _writable("runs", runs_folder()),
    ]
    findings += [_shared_memory(), _optional("redis-server", "the Redis coordinator")]
    return [*findings, *_within_reach()]


_PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "distributed",
    "mlflow",
    "optuna",
    "omegaconf",
)


def _python() -> Finding:
    good = sys.version_info >= (3, 11)
    return _finding("Python", good, sys.version.split()[0], "install Python 3.11 or newer")


def _package(name: str) -> Finding:
    try:
        found = version(name)
    except PackageNotFoundError:
        return _finding(name, False, "not installed", f"pip install {name}")
    bad = name == "torch" and found.startswith("2.13.0")
    advice = "torch 2.13.0 cannot be imported beside torchvision: install another version"
    return _finding(name, not bad, found, advice)


def _gpu() -> Finding:
    import torch

    if torch.cuda.is_available():
        return _finding("GPU", True, torch.cuda.get_device_name(), "")
    return _limited("GPU", "none: everything runs on the CPU", "a GPU makes it faster")


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    text = f"{os.cpu_count()} cores, {memory.available / 2**30:.1f} GiB free"
    if memory.available < 2 * 2**30:
        return _limited(
            "machine", text, "data sets and teachers need memory; close programs"
        )
    return _finding("machine", True, text, "")


def _writable(what: str, folder: Path) -> Finding:
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(existing).free / 1e9
    variable = "KDLAB_HOME" if what.startswith("data") else "KDLAB_RUNS"
    return _finding(
        f"folder for {what}",
        os.access(existing, os.W_OK),
        f"{folder} ({free:.0f} GB free)",
        f"set {variable} to a folder that can be written",
    )


def _shared_memory() -> Finding:
    if os.access("/dev/shm", os.W_OK):
        return _finding("shared memory", True, "/dev/shm", "")
    return _limited(
        "shared memory", "no /dev/shm", "the reader uses a temporary file instead"
    )


def _optional(program: str, what: str) -> Finding:
    path = shutil.which(program)
    if path:
        return _finding(program, True, path, "")
    return _limited(program, "not found", f"only {what} needs it")


def _within_reach() -> Iterator[Finding]:
    """Who could reach what: each port that is open now, and folders of runs."""
    ports = list(reach.listening())
    if not ports:
        yield _finding("ports", True, "no process of kdlab listens now", "")
    for port in ports:
        what = f"port {port.port}, {port.program.removeprefix('kdlab.')}"
        if port.guard:
            yield _finding(what, True, f"{port.guard} ({port.within_reach_of})", "")
            continue
        yield _limited(
            what,
            f"ANSWERS ANYBODY among {port.within_reach_of} (process {port.pid})",
            "end it, or give it certificates: docs/cluster.md",
        )
    shown = reach.readable_runs()
    if shown:
        first = runs_folder() / shown[0]
        found = f"other users may read {len(shown)}, such as {shown[0]}"
        yield _limited("run folders", found, f"chmod -R go= {first}")
    else:
        yield _finding("run folders", True, "for you alone", "")


def _finding(what: str, good: bool, found: str, advice: str) -> Finding:
    state = "ok" if good else "missing"
    return Finding(what=what, state=state, found=found, advice="" if good else advice)


def _limited(what: str, found: str, advice: str) -> Finding:
    return Finding(what=what, state="limited", found=found, advice=advice)


def printed(findings: list[Finding]) -> str:
    rows = [[f["what"], f["state"], f["found"], f["advice"]] for f in findings]
    return text_table(["", "state", "found", "advice"], rows)
