"""The command line. Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped by the user."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from kdlab.commands import (
    attach,
    bench,
    chaos,
    completion,
    control,
    data,
    doctor,
    examine,
    export,
    new,
    predict,
    recipes,
    reproduce,
    resume,
    run,
    runs,
    scale,
    show,
    simulate,
    stop,
    sweep,
    teacher,
    ui,
)
from kdlab.commands import list as listing
from kdlab.commands.command import Command
from kdlab.config.home import keep_private
from kdlab.errors import KdlabError
from kdlab.report.table import visible

COMMANDS: dict[str, Command] = {
    "new": new,
    "list": listing,
    "show": show,
    "recipes": recipes,
    "data": data,
    "run": run,
    "sweep": sweep,
    "runs": runs,
    "attach": attach,
    "stop": stop,
    "scale": scale,
    "control": control,
    "chaos": chaos,
    "resume": resume,
    "export": export,
    "predict": predict,
    "examine": examine,
    "teacher": teacher,
    "bench": bench,
    "simulate": simulate,
    "reproduce": reproduce,
    "ui": ui,
    "doctor": doctor,
    "completion": completion,
}


def main(argv: Sequence[str] | None = None) -> int:
    if "_ARGCOMPLETE" in os.environ:  # the shell asks
        completion.complete(parser())
    arguments = parser().parse_args(argv)
    arguments.alone = argv is None  # this process is for the command alone
    if arguments.alone:
        keep_private()
    command: Command = COMMANDS[arguments.command]
    try:
        return command.do(arguments)
    except KdlabError as error:
        print(visible(str(error)), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `kdlab list | head`
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        # One more while the interpreter ends would be a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("Interrupted.", file=sys.stderr)
        return 130


class _InAnyOrder(argparse.ArgumentParser):
    """Takes `run quickstart --json train.epochs=2` too: words after an option."""

    _mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._mixing:  # parse_known_intermixed_args comes back here, twice
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="kdlab", description="Large-scale knowledge distillation of image models."
    )
    commands = whole.add_subparsers(
        required=True, metavar="COMMAND", dest="command", parser_class=_InAnyOrder
    )
    for name, command in COMMANDS.items():
        command.options(
            commands.add_parser(name, help=command.ABOUT, description=command.ABOUT)
        )
    return whole
