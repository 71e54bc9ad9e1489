"""Whoever answers on a wire sends what he likes: nothing of it runs."""

import asyncio
import subprocess
import sys

import pytest

from kdlab.cluster.transport import label_wire

ASK = """
import asyncio, os, sys
from distributed.core import Server, rpc
from distributed.protocol.serialize import ToPickle
from kdlab.cluster.transport.wire import call_coordinator, refuse_pickles


class Runs:
    def __reduce__(self):
        return os.system, (f"touch {sys.argv[1]}",)


async def watch(**_):
    return {"version": 1, "held": ToPickle(Runs())}


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
    """In `anybody`, a process that is no reader, the message does run code."""
    marker = tmp_path / "ran"
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(marker), who],
        capture_output=True,
        text=True,
        check=False,
    )
    assert marker.exists() == (who == "anybody"), done.stderr
    assert ("the coordinator sent a pickle" in done.stdout) == (who == "reader")


def test_nobody_passes_the_proof_on_from_another_port(with_token):
    """A stranger at the port of a teacher that is gone asked a live one, and changed answers."""

    async def run():
        asked, moved = [], [0, 0]

        async def pass_on(reader, writer, way):
            while data := await reader.read(4096):
                moved[way] += len(data)
                writer.write(data)
            writer.close()

        async def stranger(reader, writer):
            near, far = await asyncio.open_connection("127.0.0.1", port)
            ways = pass_on(reader, far, 0), pass_on(near, writer, 1)
            await asyncio.gather(*ways, return_exceptions=True)

        teacher = await label_wire.listen(
            "127.0.0.1", lambda request, arrays, reply: asked.append(request), lambda: 10**6
        )
        port = label_wire.port_of(teacher)
        between = await asyncio.start_server(stranger, "127.0.0.1", 0)
        with pytest.raises(ConnectionError, match="does not know this pool's token"):
            await label_wire.connect("127.0.0.1", between.sockets[0].getsockname()[1])
        asker = await label_wire.connect("127.0.0.1", port)  # its own port is
        assert asker.usable
        asker.retire()
        between.close()
        teacher.close()
        assert asked == []
        assert moved[0] >= 20  # the stranger did pass the greeting on,
        assert moved[1] >= 48  # and the teacher's proof

    asyncio.run(run())
