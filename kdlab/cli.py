"""The command line. Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped by the user."""

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import Any

from kdlab.commands import looking, making, running, steering
from kdlab.commands.command import Command
from kdlab.errors import KdlabError

COMMANDS: dict[str, Command] = {
    "list": looking.list_names,
    "show": looking.show_name,
    "run": running.run,
    "sweep": running.sweep,
    "runs": looking.runs,
    "attach": running.attach,
    "stop": running.stop,
    "scale": steering.scale,
    "control": steering.control,
    "resume": running.resume,
    "export": making.export,
    "teacher": steering.teacher,
    "bench": making.bench,
    "simulate": making.simulate,
    "reproduce": making.reproduce,
    "ui": looking.ui,
    "doctor": looking.doctor,
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        return COMMANDS[arguments.command].do(arguments)
    except KdlabError as error:
        print(error, file=sys.stderr)
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
        own = commands.add_parser(name, help=command.about, description=command.about)
        for option in command.options:
            option(own)
    return whole
