"""The pipe whose closing ends a child, watched from the child's first instruction on.

`python -m kdlab.supervision MODULE` runs a module's main. Its imports take seconds, and
longer where many start at once; `configured` (children.py) reads the pipe only after them. Until
then a thread here waits for it to close: a parent that is killed meanwhile leaves nobody behind.
"""

import os
import select
import threading

_STDIN = 0
_TICK_MS = 200
followed = threading.Event()  # by somebody who reads the pipe and sees its end: it is over


def watch() -> None:
    """End this process when the pipe closes, without reading from it."""
    threading.Thread(target=_watch, name="first lifeline", daemon=True).start()


def _watch() -> None:
    pipe = select.poll()
    pipe.register(_STDIN, 0)  # its end alone: what was written stays for `configured`
    while not followed.is_set():
        if pipe.poll(_TICK_MS) and not followed.is_set():
            os._exit(1)
