"""A call to a pool, from a thread that may be interrupted."""

import asyncio
import signal
import threading

import pytest

from kdlab.cluster.transport.wire import run_isolated


def test_a_call_gives_what_it_found_or_raises_it():
    async def give_answer():
        return 7

    async def fails():
        raise ValueError("why")

    assert run_isolated(give_answer) == 7
    with pytest.raises(ValueError, match="why"):
        run_isolated(fails)


def test_who_is_interrupted_does_not_wait_for_the_call():
    """A stop waited for the end of a call: two minutes, of a pool that never answers."""
    main, answers = threading.main_thread().ident, threading.Event()

    async def call():
        signal.pthread_kill(main, signal.SIGINT)
        await asyncio.to_thread(answers.wait)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_isolated(call)
    finally:
        answers.set()
        signal.signal(signal.SIGINT, before)
