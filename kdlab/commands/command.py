"""The protocol of a command's module, and functions that several commands share."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

from kdlab.events.event import Event
from kdlab.ranges import Range
from kdlab.report.table import visible
from kdlab.report.verdict_picture import PICTURE

if TYPE_CHECKING:
    from kdlab.run import Run
    from kdlab.run.handle.job_handle import JobHandle

FollowedJob = TypeVar("FollowedJob", bound="JobHandle")  # a run or a sweep
_STOPS = (signal.SIGINT, signal.SIGTERM)


class Command(Protocol):
    """A module of this room; its name is that of the command."""

    ABOUT: str

    def options(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the command."""

    def do(self, arguments: argparse.Namespace) -> int:
        """Run the command and return its exit code; errors of kdlab are raised."""


CLOSELY = "also find near-duplicate images and labels that look wrong (takes minutes)"


def say(line: str) -> None:
    """Print a line to stderr, as stdout is for results."""
    print(visible(line), file=sys.stderr, flush=True)


def _say_at_once(line: str) -> None:
    """Write from a signal handler: `print` may be interrupted, and cannot be re-entered."""
    os.write(2, f"{line}\n".encode())


def json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="end stdout with one JSON object on one line"
    )


def overrides(parser: argparse.ArgumentParser, about: str | None = None) -> None:
    """Add arguments such as train.epochs=2; there may be none."""
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=about)


def number(
    least: int, most: int | None = None, kind: Callable[[str], float] = int
) -> Callable[[str], float]:
    """Return a type of arguments for argparse: numbers from `least` to `most`."""
    within = Range(ge=least, le=most)

    def number(text: str) -> float:
        value = kind(text)
        if (why := within.fault(value)) is not None:
            raise argparse.ArgumentTypeError(why)
        return value

    return number


def print_text(text: str, *, as_json: bool) -> None:
    """Print the text of a result, to stderr where --json reserves stdout for the object."""
    print(visible(text), file=sys.stderr if as_json else sys.stdout)


def show(text: str, result: object, *, as_json: bool) -> None:
    """Print a result as text, and with --json as an object after it."""
    print_text(text, as_json=as_json)
    answer(result, as_json=as_json)


def answer(result: object, *, as_json: bool) -> None:
    """Print the object of a result where --json asks for it."""
    if as_json:
        print(json.dumps(result))


def start_job(
    start: Callable[[], FollowedJob],
    see: Callable[[Event], None],
    arguments: argparse.Namespace,
    since: float = 0.0,
    before: Callable[[FollowedJob], object] = lambda run: None,
) -> tuple[FollowedJob | None, int]:
    """Start a job and watch it to the end; return it (None if detached) and the count of Ctrl-C.

    Ctrl-C stops gracefully, a second one stops at once. Events before `since` belong to an earlier
    session and are not shown again; `before` is called with the job before it is watched.
    """
    run: FollowedJob | None = None
    pressed = 0

    def on_interrupt(*_: object) -> None:
        nonlocal pressed
        if run is None:
            # Another interrupt while the interpreter ends would print a traceback.
            for number in _STOPS:
                signal.signal(number, signal.SIG_IGN)
            _say_at_once("interrupted before anything was started")
            raise KeyboardInterrupt
        pressed += 1
        if pressed == 1:
            _say_at_once("stopping: work under way is saved; Ctrl-C again stops at once")
            run.stop()
        else:
            run.kill()

    # SIGTERM too, from `timeout` or a shell that ends: otherwise the run continues unseen.
    as_it_was = {number: signal.signal(number, on_interrupt) for number in _STOPS}
    try:
        run = start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)  # of `_hand_over`
        if arguments.detach:
            words = f"{run.id} is running; watch it with: kdlab attach {run.name}"
            facts = {"run_id": run.id, "run_dir": str(run.path)}
            show(words, facts, as_json=arguments.json)
            return None, 0
        before(run)
        run.wait(see, since=since)
    finally:
        for number, before_it in as_it_was.items():
            if signal.getsignal(number) is on_interrupt:
                signal.signal(number, before_it)
    return run, pressed


def _hand_over(run: "Run", since: float, *, as_json: bool) -> None:
    """Replace this process by `kdlab attach`, which needs none of the modules loaded for a start.

    Ctrl-C is blocked meanwhile, and then works as here.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    sys.stdout.flush()
    sys.stderr.flush()
    words = ["attach", run.id, "--since", repr(since), *["--json"][: int(as_json)]]
    with suppress(OSError):  # else this process watches
        os.execv(sys.executable, [*sys.orig_argv[: 1 - len(sys.argv)], *words])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


def start_run(
    start: Callable[[], "Run"], arguments: argparse.Namespace, since: float | None = None
) -> int:
    """Start, watch and report a run; `arguments` has detach and json.

    Events before `since` are not shown; None means now.
    """
    from kdlab.report.progress import Progress

    begin = time.time() if since is None else since
    with ExitStack() as block:
        progress = Progress()

        def before(run: "Run") -> None:
            if "torch" in sys.modules and vars(arguments).get("own_process"):
                _hand_over(run, begin, as_json=arguments.json)
            block.enter_context(progress)

        run, pressed = start_job(start, progress.on_event, arguments, begin, before)
    if run is None:
        return 0
    if pressed > 1:
        say(f"stopped at once; checkpoints are kept: kdlab resume {run.id}")
        return 130
    return report_run(run, as_json=arguments.json)


def report_tracking(run: "JobHandle") -> None:
    """Print whether MLflow has the run, and how to see it."""
    if run.status.tracking:
        say(f"MLflow: {run.status.tracking}")
    elif (run.status.result or {}).get("tracking_uri"):
        say("Compare in MLflow: kdlab ui")


def report_run(run: "Run", *, as_json: bool) -> int:
    """Print the result of a run. Raises RunFailed or RunStopped with the reason."""
    result = run.result
    show(f"\n{run.table()}\n", result, as_json=as_json)
    report_tracking(run)
    say(f"Student: {result['run_dir']}/members  ·  kdlab export {run.id}")
    if (picture := run.path / PICTURE).is_file():
        say(f"Picture: {picture}")
    return 0
