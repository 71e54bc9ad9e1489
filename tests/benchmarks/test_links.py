"""Two network namespaces with a slow link between them."""

import os
import subprocess
import sys

import pytest

from benchmarks import links, network
from benchmarks.network import TUN, MachineLink, linked, why_not
from kdlab.errors import BadInput

NEEDED = pytest.mark.skipif(why_not() is not None, reason=f"{why_not()}")


ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 7777))
print("up", flush=True)
wire, _ = server.accept()
while got := wire.recv(65536):
    wire.sendall(got)
"""
ASK = """
import os, socket, sys, time
wire, times = socket.create_connection((sys.argv[1], 7777)), []
for _ in range(5):
    begin = time.perf_counter()
    wire.sendall(b"x")
    wire.recv(1)
    times.append(1e3 * (time.perf_counter() - begin))
sent, got = os.urandom(50_000), b""
wire.sendall(sent)
while len(got) < len(sent):
    got += wire.recv(65536)
print(min(times), got == sent)
"""


def namespaces(pid=None):
    """Namespaces of a process, by default this one: other tests run at the same time."""
    done = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    )
    names = {line.split()[0] for line in done.stdout.splitlines()}
    return {name for name in names if name.startswith(f"kdlab-{pid or os.getpid()}-")}


@pytest.mark.processes
@NEEDED
def test_a_network_is_gone_afterwards_whatever_happened():
    before = namespaces()

    def fails():
        with linked(MachineLink(100.0)) as (near, far):
            assert len(namespaces() - before) == 2
            answer = subprocess.run(
                [*near, "ip", "-brief", "addr"], capture_output=True, text=True, check=True
            )
            assert network.NEAR in answer.stdout
            assert network.FAR not in answer.stdout
            assert far != near
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert namespaces() == before


@pytest.mark.processes
@NEEDED
def test_networks_of_a_killed_process_are_taken_away():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    name = f"kdlab-{gone.pid}-0-near"
    subprocess.run(["ip", "netns", "add", name], check=True)
    with linked(MachineLink()):
        assert not namespaces(gone.pid)


@pytest.mark.processes
@NEEDED
@pytest.mark.parametrize("relayed", [True, False])
def test_a_delayed_link_is_as_far_away_as_it_says(monkeypatch, relayed):
    """A round trip takes twice the delay; what arrives is what was sent."""
    if not relayed and not network.has_netem():
        pytest.skip("this kernel has no netem")
    if relayed and not os.access(TUN, os.R_OK | os.W_OK):
        pytest.skip(f"there is no {TUN}")
    monkeypatch.setattr(network, "has_netem", lambda: not relayed)
    before = namespaces()
    with linked(MachineLink(100.0, 20.0)) as (near, far):
        serving = subprocess.Popen(
            [*far, sys.executable, "-c", ECHO, network.FAR],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert serving.stdout.readline() == "up\n"
            asked = subprocess.run(
                [*near, sys.executable, "-c", ASK, network.FAR],
                capture_output=True, text=True, check=True, timeout=60,
            )  # fmt: skip
        finally:
            serving.kill()
            serving.wait()
            serving.stdout.close()
    fastest, same = asked.stdout.split()
    assert float(fastest) >= 40  # ms
    assert same == "True"
    assert namespaces() == before


def test_without_root_it_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(network.os, "geteuid", lambda: 1000)
    with pytest.raises(BadInput, match="needs root"), linked(MachineLink()):
        pass


@NEEDED
@pytest.mark.slow
@pytest.mark.nightly
def test_by_value_starves_on_a_slow_link_and_by_reference_does_not(monkeypatch):
    # Much less than any machine needs.
    monkeypatch.setattr(links, "LINKS", (MachineLink(30.0),))
    monkeypatch.setattr(links, "DELAYED", ())
    before = namespaces()
    values = {f["name"]: f["value"] for f in links.measure(repeats=1)["figures"]}
    assert namespaces() == before
    assert values["of_n_training/value_uint8/30mbit"] < 0.7
    share = values["of_n_training/reference/30mbit"]
    assert share > values["of_n_training/value_uint8/30mbit"]
    assert values["mbit_per_s/value_uint8/30mbit"] < 36
    each = values["bytes_per_sample/reference/30mbit"]
    assert each * 300 < values["bytes_per_sample/value_uint8/30mbit"]
