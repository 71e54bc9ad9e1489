"""The thread that keeps widgets up to date."""

import threading
from collections.abc import Callable
from contextvars import copy_context


def follower(follow: Callable[[], None], name: str) -> threading.Thread:
    """A thread, not yet started, whose messages belong to the cell that made it.

    A thread without a context of its own speaks for whatever request the kernel got last.
    ipykernel 7.4 sends a page's answers to the subshell of that request, and of a reloaded
    page that is one which is gone a moment later: all that the page says is then refused
    ("Unknown subshell_id"), so curves are never asked for and buttons do nothing.
    """
    return threading.Thread(
        target=copy_context().run, args=(follow,), name=name, daemon=True
    )
