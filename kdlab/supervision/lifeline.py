"""Watch a child's lifeline from its first instruction: the child ends when the pipe closes.

`python -m kdlab.supervision MODULE` runs a module's main. Its imports take seconds, and
longer where many start at once; `configured` (children.py) reads the pipe only after them. Until
then a thread waits for it to close, so a parent that is killed meanwhile leaves no child behind.
"""

import os
import select
import threading

_STDIN = 0
_TICK_MS = 200
followed = threading.Event()  # set when another thread reads the pipe and sees its end


def watch() -> None:
    """End this process when the pipe closes, without reading from it."""
    threading.Thread(target=_watch, name="first lifeline", daemon=True).start()


def _watch() -> None:
    pipe = select.poll()
    pipe.register(_STDIN, 0)  # only its end: `configured` reads the data
    while not followed.is_set():
        if pipe.poll(_TICK_MS) and not followed.is_set():
            os._exit(1)
