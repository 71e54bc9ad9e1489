"""A process of a bench: calls one of its functions, and announces the result as `done`.

The function may announce more before, such as `say`. One that never returns runs until the
process that started it (`harness.Scratch.calling`) ends it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import get_type_hints

from kdlab.codec import from_builtins, to_builtins
from kdlab.supervision.children import announce, configured


@dataclass(frozen=True, slots=True)
class Call:
    """A function, such as `benchmarks.peers:memory_of`, and its arguments by name."""

    function: str
    arguments: Mapping[str, object]


def main() -> None:
    call = configured(Call)
    module, _, name = call.function.partition(":")
    function = getattr(import_module(module), name)
    kinds = get_type_hints(function)
    arguments = {k: from_builtins(kinds[k], v) for k, v in call.arguments.items()}
    announce(done=to_builtins(function(**arguments)))


if __name__ == "__main__":
    main()
