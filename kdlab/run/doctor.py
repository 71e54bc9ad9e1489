"""`kdlab doctor`: what works on this machine, what does not, and what to install."""

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict
from urllib.parse import urlsplit

import psutil

from kdlab.config.credentials import WEBHOOK, webhook
from kdlab.config.home import home_path, runs_folder
from kdlab.errors import KdlabError
from kdlab.report.table import folded_table
from kdlab.run import port_audit
from kdlab.run.handle.alerts import send


class Finding(TypedDict):
    what: str
    state: str  # ok, limited, missing
    found: str  # a key of JSON
    advice: str


_PACKAGES = ("torch", "torchvision", "timm", "distributed", "mlflow", "optuna", "omegaconf")


def examine(*, alert: bool = False) -> list[Finding]:
    import torch

    gpu = torch.cuda.is_available()
    gpu_name = torch.cuda.get_device_name() if gpu else "none: everything runs on the CPU"
    free = psutil.virtual_memory().available
    machine = f"{os.cpu_count()} cores, {free / 2**30:.1f} GiB free"
    close = "data sets and teachers need memory; close programs"
    shared, file = (
        os.access("/dev/shm", os.W_OK),
        "the reader uses a temporary file instead",
    )
    shared_at = "/dev/shm" if shared else "no /dev/shm"
    redis, only = shutil.which("redis-server"), "only the Redis coordinator needs it"
    new, python = sys.version_info >= (3, 11), sys.version.split()[0]
    return [
        _finding("Python", new, python, "install Python 3.11 or newer"),
        *map(_package, _PACKAGES),
        _finding("GPU", gpu, gpu_name, "a GPU makes it faster", "limited"),
        _finding("machine", free >= 2 * 2**30, machine, close, "limited"),
        _writable("data and teachers", home_path(), "KDLAB_HOME"),
        _writable("runs", runs_folder(), "KDLAB_RUNS"),
        _finding("shared memory", shared, shared_at, file, "limited"),
        _finding("redis-server", bool(redis), redis or "not found", only, "limited"),
        _alerts(alert),
        *_within_reach(),
    ]


def _alerts(try_it: bool) -> Finding:
    how = f"{WEBHOOK}=https://... tells you what runs come to: docs/runs.md"
    try:
        address = webhook()
        if address and try_it:
            send(address, "kdlab: a test", "Alerts of your runs will come here.")
    except KdlabError as error:
        return _finding("alerts", False, str(error), how)
    host = f"go to {urlsplit(address or '').hostname}{', which took one' * try_it}"
    return _finding("alerts", bool(address), host if address else "off", how, "limited")


def _package(name: str) -> Finding:
    try:
        installed = version(name)
    except PackageNotFoundError:
        return _finding(name, False, "not installed", f"pip install {name}")
    bad = name == "torch" and installed.startswith("2.13.0")
    advice = "torch 2.13.0 cannot be imported beside torchvision: install another version"
    return _finding(name, not bad, installed, advice)


def _writable(what: str, folder: Path, variable: str) -> Finding:
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(existing).free / 1e9
    good = existing.is_dir() and os.access(existing, os.W_OK)
    text = f"{folder} ({free:.0f} GB free)"
    advice = f"set {variable} to a folder that can be written"
    return _finding(f"folder for {what}", good, text, advice)


def _within_reach() -> Iterator[Finding]:
    """Findings on open ports, and on folders of runs that other users can read."""
    ports = list(port_audit.listening())
    if not ports:
        yield _finding("ports", True, "no process of kdlab listens now", "")
    for port in ports:
        what = f"port {port.port}, {port.program.removeprefix('kdlab.')}"
        if port.guard:
            yield _finding(what, True, f"{port.guard} ({port.within_reach_of})", "")
            continue
        text = f"ANSWERS ANYBODY among {port.within_reach_of} (process {port.pid})"
        advice = "end it, or give it certificates: docs/cluster.md"
        yield _finding(what, False, text, advice, "limited")
    shown = port_audit.readable()
    text = f"others may read {len(shown)}, such as {shown[0]}" if shown else "for you alone"
    closing = f"chmod go= {' '.join(map(str, sorted({p.parent for p in shown})))}"
    yield _finding("what kdlab keeps", not shown, text, closing, "limited")


def _finding(
    what: str, good: bool, result: str, advice: str, otherwise: str = "missing"
) -> Finding:
    state, advice = ("ok", "") if good else (otherwise, advice)
    return Finding(what=what, state=state, found=result, advice=advice)


def printed(findings: list[Finding]) -> str:
    rows = [[f["what"], f["state"], f"{f['found']}\n{f['advice']}"] for f in findings]
    return folded_table([["", "state", "found, and what to do"], *rows])
