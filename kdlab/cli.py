"""The command line. Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped by the user."""

import argparse
import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any

from kdlab import __version__
from kdlab.commands import (
    attach,
    bench,
    chaos,
    completion,
    control,
    data,
    delete,
    doctor,
    examine,
    export,
    label,
    mark,
    new,
    page,
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
from kdlab.config.folders import nearest
from kdlab.config.home import keep_private
from kdlab.errors import BadInput, KdlabError
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
    "page": page,
    "mark": mark,
    "delete": delete,
    "attach": attach,
    "stop": stop,
    "scale": scale,
    "control": control,
    "chaos": chaos,
    "resume": resume,
    "export": export,
    "predict": predict,
    "label": label,
    "examine": examine,
    "teacher": teacher,
    "bench": bench,
    "simulate": simulate,
    "reproduce": reproduce,
    "ui": ui,
    "doctor": doctor,
    "completion": completion,
}
_FIRST = """\
kdlab trains small image networks with the knowledge of large ones. To begin with:

    kdlab new NAME --data PHOTOS   a config and a notebook for your own photos
    kdlab run quickstart           a first run on handwritten digits, in a minute
    kdlab list                     configs, models, losses and all other parts
    kdlab ui                       the runs in MLflow's pages

All commands: kdlab --help. One command: kdlab run --help."""


def main(argv: Sequence[str] | None = None) -> int:
    if "_ARGCOMPLETE" in os.environ:  # the shell asks
        completion.complete(parser())
    words = sys.argv[1:] if argv is None else argv
    if argv is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be no UTF-8
    if not words:
        print(_FIRST, file=sys.stderr)
        return 2
    try:
        return _run(words, own_process=argv is None)
    except KdlabError as error:
        print(visible(str(error)), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `kdlab list | head`
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        # Another interrupt while the interpreter ends would print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("Interrupted.", file=sys.stderr)
        return 130


def _run(words: Sequence[str], *, own_process: bool) -> int:
    """Run a command and return its exit code; `own_process`: the process serves it only."""
    if words[0] not in COMMANDS and not words[0].startswith("-"):
        # `compare` is what `kdlab runs` says that it does.
        about = {name: command.ABOUT for name, command in COMMANDS.items()}
        does = [k for k, text in about.items() if words[0] in re.findall(r"\w{4,}", text)]
        more = f" Perhaps kdlab {does[0]} ({about[does[0]]})." if does else ""
        near = more or nearest(words[0], COMMANDS)
        raise BadInput(f"There is no command {words[0]!r}.{near} All: kdlab --help")
    arguments = parser().parse_args(words, argparse.Namespace(own_process=own_process))
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise BadInput("The current folder was deleted. Go to another: cd ~") from error
    if own_process:
        keep_private()
    return COMMANDS[arguments.command].do(arguments)


class _InAnyOrder(argparse.ArgumentParser):
    """Accepts positional words after options: `run quickstart --json train.epochs=2`."""

    _mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._mixing:  # parse_known_intermixed_args comes back here, twice
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False
        if unknown:
            near = nearest(unknown[0], re.findall(r"--[\w-]+", self.format_help()))
            self.error(f"unrecognized arguments: {' '.join(unknown)}.{near}")
        return parsed, unknown


def parser() -> argparse.ArgumentParser:
    about = "Large-scale knowledge distillation of image models."
    root = argparse.ArgumentParser(prog="kdlab", description=about)
    root.add_argument("--version", action="version", version=f"kdlab {__version__}")
    commands = root.add_subparsers(
        required=True, metavar="COMMAND", dest="command", parser_class=_InAnyOrder
    )
    for name, command in COMMANDS.items():
        about = command.ABOUT
        command.options(commands.add_parser(name, help=about, description=about))
    return root
