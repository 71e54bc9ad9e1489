"""`kdlab completion`: shell completion, and the line that enables it."""

import argparse
import contextlib
from collections.abc import Callable, Iterable

from kdlab.config import folders, source_index
from kdlab.errors import KdlabError
from kdlab.run import runs

ABOUT = "tab completion: the line for your shell's start file"

_LINES = {
    "bash": 'eval "$(register-python-argcomplete kdlab)"',
    "zsh": "autoload -U bashcompinit && bashcompinit\n"
    'eval "$(register-python-argcomplete kdlab)"',
    "fish": "register-python-argcomplete --shell fish kdlab | source",
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(_LINES))


def do(arguments: argparse.Namespace) -> int:
    print(_LINES[arguments.shell])
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a completion request of the shell; does nothing without one."""
    import argcomplete

    assert parser._subparsers is not None
    commands = parser._subparsers._group_actions[0].choices
    assert isinstance(commands, dict)
    for command, subparser in commands.items():
        for action in subparser._actions:
            known = _NAMES.get(action.dest, _NAMES.get(f"{command} {action.dest}"))
            if known is not None and not action.choices:
                action.completer = _quietly(known)
    argcomplete.autocomplete(parser)


def _quietly(known: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    """Complete with no words where a folder cannot be read."""

    def completer(**_: object) -> list[str]:
        with contextlib.suppress(KdlabError, OSError):
            return list(known())
        return []

    return completer


def _configs() -> list[str]:
    return [name for name in folders.names("configs") if not name.startswith("sweeps/")]


def _sweeps() -> list[str]:
    every = folders.names("configs")
    return [name.removeprefix("sweeps/") for name in every if name.startswith("sweeps/")]


def _parts() -> list[str]:
    cards = folders.names("registry")
    return [*_configs(), *cards, *(entry.name for entry in source_index.index())]


def _runs() -> list[str]:
    return ["last", *(run.id for run in runs(50))]


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "run": _runs,
    "compare": _runs,
    "run experiment": _configs,
    "show name": _parts,
    "data name": _parts,
    "sweep sweep": _sweeps,
}
