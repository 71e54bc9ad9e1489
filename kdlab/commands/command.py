"""What a file of this room offers, and what several commands share."""

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
from kdlab.experiment.folder import find_sweep
from kdlab.report.table import visible
from kdlab.report.verdict_picture import PICTURE
from kdlab.run import attach

if TYPE_CHECKING:
    from kdlab.run import Run
    from kdlab.run.handle.job_handle import JobHandle
    from kdlab.tuning import Sweep

FollowedJob = TypeVar("FollowedJob", bound="JobHandle")  # a run or a sweep
_STOPS = (signal.SIGINT, signal.SIGTERM)


class Command(Protocol):
    """A module of this room; its name is that of the command."""

    ABOUT: str

    def options(self, parser: argparse.ArgumentParser) -> None:
        """Add what can be said behind the command's name."""

    def do(self, arguments: argparse.Namespace) -> int:
        """Exit code. Errors of kdlab are raised."""


CLOSELY = "look for images that look alike and labels that look wrong, too (minutes)"


def say(line: str) -> None:
    """To people: stdout is for results."""
    print(visible(line), file=sys.stderr, flush=True)


def _say_at_once(line: str) -> None:
    """From a signal's handler: it may have interrupted a `print`, which cannot be entered twice."""
    os.write(2, f"{line}\n".encode())


def json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="end stdout with one JSON object on one line"
    )


def tell(text: str, *, as_json: bool) -> None:
    """A text of a result; stdout belongs to the object where --json asks for one."""
    print(visible(text), file=sys.stderr if as_json else sys.stdout)


def show(text: str, found: object, *, as_json: bool) -> None:
    """A result as a text, and with --json as an object after it."""
    tell(text, as_json=as_json)
    answer(found, as_json=as_json)


def answer(found: object, *, as_json: bool) -> None:
    """The object alone, where --json asks for one."""
    if as_json:
        print(json.dumps(found))


def found(name: str) -> "Run | Sweep":
    """A run, or a sweep as sweeps/NAME."""
    if name.startswith("sweeps/"):
        study = name.removeprefix("sweeps/")
        find_sweep(study)  # before Optuna is imported
        from kdlab.tuning import attach_sweep

        return attach_sweep(study)
    return attach(name)


def started(
    start: Callable[[], FollowedJob],
    see: Callable[[Event], None],
    arguments: argparse.Namespace,
    since: float = 0.0,
    before: Callable[[FollowedJob], object] = lambda run: None,
) -> tuple[FollowedJob | None, int]:
    """Start and watch to the end; how often Ctrl-C was pressed. None when it is detached.

    Ctrl-C stops gracefully, a second one ends it at once. Events before `since` are of an earlier
    session, and are not shown again; `before` is called with what is going to be watched.
    """
    run: FollowedJob | None = None
    pressed = 0

    def on_interrupt(*_: object) -> None:
        nonlocal pressed
        if run is None:
            # One more, while the interpreter ends, would be a traceback.
            for number in _STOPS:
                signal.signal(number, signal.SIG_IGN)
            _say_at_once("interrupted before anything was started")
            raise KeyboardInterrupt
        pressed += 1
        if pressed == 1:
            _say_at_once(
                "stopping: what is under way is saved; Ctrl-C again ends it at once"
            )
            run.stop()
        else:
            run.kill()

    # SIGTERM too, of `timeout` or a shell that ends: the run would go on with nobody to see it.
    as_it_was = {number: signal.signal(number, on_interrupt) for number in _STOPS}
    try:
        run = start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)  # of `_hand_over`
        if arguments.detach:
            words = f"{run.id} is running; watch it with: kdlab attach {run.name}"
            found = {"run_id": run.id, "run_dir": str(run.path)}
            show(words, found, as_json=arguments.json)
            return None, 0
        before(run)
        run.wait(see, since=since)
    finally:
        for number, before_it in as_it_was.items():
            if signal.getsignal(number) is on_interrupt:
                signal.signal(number, before_it)
    return run, pressed


def _hand_over(run: "Run", since: float, *, as_json: bool) -> None:
    """To `kdlab attach` in this very process: what a start has loaded, lines do not need.

    Ctrl-C waits meanwhile, and then means what it means here.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    sys.stdout.flush()
    sys.stderr.flush()
    words = ["attach", run.id, "--since", repr(since), *["--json"][: int(as_json)]]
    with suppress(OSError):  # it goes on as it is
        os.execv(sys.executable, [*sys.orig_argv[: 1 - len(sys.argv)], *words])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


def start_run(
    start: Callable[[], "Run"], arguments: argparse.Namespace, since: float | None = None
) -> int:
    """Start, watch and report a run; `arguments` has detach and json.

    Events before `since` are not shown; None is now.
    """
    from kdlab.report.progress import Progress

    begin = time.time() if since is None else since
    with ExitStack() as block:
        progress = Progress()

        def before(run: "Run") -> None:
            if "torch" in sys.modules and vars(arguments).get("own_process"):
                _hand_over(run, begin, as_json=arguments.json)
            block.enter_context(progress)

        run, pressed = started(start, progress.see, arguments, begin, before)
    if run is None:
        return 0
    if pressed > 1:
        say(f"stopped at once; its checkpoints are kept: kdlab resume {run.id}")
        return 130
    return report_run(run, as_json=arguments.json)


def tell_tracking(run: "JobHandle") -> None:
    """Whether MLflow has it."""
    if run.status.tracking:
        say(f"MLflow: {run.status.tracking}")
    elif (run.status.result or {}).get("tracking_uri"):
        say("Compare in MLflow: kdlab ui")


def report_run(run: "Run", *, as_json: bool) -> int:
    """What came of it. Raises RunFailed or RunStopped with the reason."""
    result = run.result
    show(f"\n{run.table()}\n", result, as_json=as_json)
    tell_tracking(run)
    say(f"Student: {result['run_dir']}/members  ·  kdlab export {run.id}")
    if (picture := run.path / PICTURE).is_file():
        say(f"Picture: {picture}")
    return 0
