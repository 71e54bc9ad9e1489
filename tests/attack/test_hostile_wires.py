"""Whoever answers on a wire sends what he likes: nothing of it runs."""

import subprocess
import sys

import pytest

ASK = """
import asyncio, os, sys
from distributed.core import Server, rpc
from distributed.protocol.serialize import ToPickle
from kdlab.cluster.wires.wire import call_coordinator, refuse_pickles


class Runs:
    def __reduce__(self):
        return os.system, (f"touch {sys.argv[1]}",)


async def watch(**_):
    return {"version": 1, "given": ToPickle(Runs())}


async def main():
    server = Server({"kdlab_watch": watch})
    await server.listen("tcp://127.0.0.1:0")
    if sys.argv[2] == "reader":
        refuse_pickles()
    async with rpc(server.address) as remote:
        try:
            await call_coordinator(remote, "watch", version=-1)
        except OSError as error:
            print(error)
    await server.close()


asyncio.run(main())
"""


@pytest.mark.processes
@pytest.mark.parametrize("who", ["reader", "anybody"])
def test_a_reader_opens_no_pickle_of_a_coordinator(tmp_path, who):
    """Of `anybody` it runs, so the message is one that would."""
    marker = tmp_path / "ran"
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(marker), who],
        capture_output=True,
        text=True,
        check=False,
    )
    assert marker.exists() == (who == "anybody"), done.stderr
    assert ("answered with a pickle" in done.stdout) == (who == "reader")
