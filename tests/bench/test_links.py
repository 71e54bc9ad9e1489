"""Two network namespaces with a slow link between them."""

import subprocess

import pytest

from kdlab.bench import links, network
from kdlab.bench.network import Link, linked, why_not
from kdlab.errors import BadInput

NEEDED = pytest.mark.skipif(why_not() is not None, reason=f"{why_not()}")


def namespaces():
    done = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    )
    return {line.split()[0] for line in done.stdout.splitlines()}


@NEEDED
def test_a_network_is_gone_afterwards_whatever_happened():
    before = namespaces()

    def fails():
        with linked(Link(100.0)) as (near, far):
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


def test_without_root_it_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(network.os, "geteuid", lambda: 1000)
    with pytest.raises(BadInput, match="needs root"), linked(Link()):
        pass


@NEEDED
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_by_value_starves_on_a_slow_link_and_by_reference_does_not(monkeypatch):
    monkeypatch.setattr(links, "LINKS", (Link(100.0),))
    monkeypatch.setattr(links, "delays", lambda: False)
    before = namespaces()
    found = {f["name"]: f["value"] for f in links.measure(repeats=1)["figures"]}
    assert namespaces() == before
    assert found["of_n_training/value_uint8/100mbit"] < 0.7
    share = found["of_n_training/reference/100mbit"]
    assert share > 1.2 * found["of_n_training/value_uint8/100mbit"]
    assert found["mbit_per_s/value_uint8/100mbit"] < 120
    each = found["bytes_per_sample/reference/100mbit"]
    assert each * 300 < found["bytes_per_sample/value_uint8/100mbit"]
